"""What networks with rotary positions share: RMSNorm, grouped heads, SwiGLU, and the names of transformers.

An architecture of this family says how queries and keys are rotated, and what else it has (qwen3.py, llama.py).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headrace.models.architecture import Architecture, Matrix, Part
from headrace.models.attention import KeyValueCache, attend
from headrace.models.config import ModelConfig
from headrace.models.hugging_face import HuggingFaceConfig, UnsupportedError
from headrace.models.kernels import Kernels
from headrace.models.linear import Linear
from headrace.models.network import Network
from headrace.models.pointwise import RMSNorm, swiglu

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines of the angles by which queries and keys are rotated."""


class RotaryArchitecture(Architecture):
    """The facts that architectures with rotary positions share."""

    has_grouped_heads = True
    is_context_fixed = False
    is_tied_by_default = False
    """Whether transformers ties the head to the embedding where config.json does not say."""

    def default_feed_forward(self, d_model: int) -> int:
        return max(64, round(d_model / 24) * 64)  # 8/3 of the width, to the nearest 64

    def check(self, config: ModelConfig) -> None:
        if config.head_width % 2:
            given = "head_dim" if config.head_dim else "d_model / num_heads"
            raise ValueError(f"rotary positions need an even width per head; {given} is {config.head_width}")

    def block_matrices(self, config: ModelConfig) -> list[Matrix]:
        width, feed_forward, attention = config.d_model, config.feed_forward, config.attention_width
        grouped = config.kv_heads * config.head_width
        if config.kv_heads == config.heads:
            projections = [Matrix("attention", "query_key_value.weight", attention, width, stacked=3)]
        else:
            projections = [
                Matrix("attention", "query.weight", attention, width),
                Matrix("attention", "key_value.weight", grouped, width, stacked=2),
            ]
        return [
            *projections,
            Matrix("attention", "attention_out.weight", width, attention),
            Matrix("feed-forward", "gate_up.weight", feed_forward, width, stacked=2),
            Matrix("feed-forward", "down.weight", width, feed_forward),
        ]

    def other_parameters(self, config: ModelConfig) -> dict[Part, int]:
        return {"norms": (2 * config.num_layers + 1) * config.d_model}

    def activation_bytes(self, config: ModelConfig, precision: str) -> int:
        width, attention, feed_forward = config.d_model, config.attention_width, config.feed_forward
        if precision == "float32":
            return 18 * width + 18 * attention + 12 * feed_forward
        return 14 * width + 9 * attention + 6 * feed_forward

    def read_hugging_face(self, values: HuggingFaceConfig) -> dict[str, Any]:
        """Return the keys of `model` that a config.json stands for, or refuse what this family does not compute."""
        values.expect("hidden_act", "silu", "the activation")
        values.refuse_if_set("attention_bias", "biases in attention")
        values.refuse_if_set("mlp_bias", "biases in the feed-forward part")
        if any(kind != "full_attention" for kind in values.get("layer_types") or ()):
            raise UnsupportedError("layers with sliding or other attention (layer_types)")
        heads = values.whole("num_attention_heads")
        return {
            "d_model": values.whole("hidden_size"),
            "num_heads": heads,
            "num_kv_heads": values.whole("num_key_value_heads", self.default_kv_heads(heads)),
            "head_dim": values.whole("head_dim", self.default_head_dim(values.whole("hidden_size") // heads)),
            "num_layers": values.whole("num_hidden_layers"),
            "d_ff": values.whole("intermediate_size"),
            "vocab_size": values.whole("vocab_size"),
            "context": values.whole("max_position_embeddings"),
            "tie_embeddings": values.flag("tie_word_embeddings", self.is_tied_by_default),
            "norm_epsilon": values.number("rms_norm_eps", 1e-6),
            "rope_theta": _rope_theta(values),
        }

    def default_kv_heads(self, heads: int) -> int | None:
        """Return the number of grouped heads that transformers takes where config.json does not say; None: refuse."""
        return heads

    def default_head_dim(self, usual: int) -> int | None:
        """Return the width of a head that transformers takes where config.json does not say; None: refuse."""
        return usual


def _rope_theta(values: HuggingFaceConfig) -> float:
    """Return the base of the rotary positions; frequencies that are scaled are refused by the name of the scaling."""
    theta = values.number("rope_theta", 10_000.0)
    for key in ("", "rope_scaling", "rope_parameters"):  # the names of transformers 4 and 5
        rope = HuggingFaceConfig(values.get(key) or {}) if key else values
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", None):
            raise UnsupportedError(f"scaled rotary positions ({key or 'rope_type'} of the type {kind})")
        if rope.number("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedError("rotary positions in a part of each head (partial_rotary_factor)")
        theta = rope.number("rope_theta", theta)
    return theta


class RotaryBlock(nn.Module):
    """One layer: attention, then a feed-forward part, each after a norm and added to what came in."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, feed_forward, attention = config.d_model, config.feed_forward, config.attention_width
        self.heads, self.kv_heads, self.head_width = config.heads, config.kv_heads, config.head_width
        self.is_grouped = self.kv_heads != self.heads
        self.attention_norm = RMSNorm(width, eps=config.epsilon)
        # One product for queries, keys and values, and one for gate and up: larger matrices run nearer the peak.
        if self.is_grouped:
            self.query = Linear(width, attention, bias=False)
            self.key_value = Linear(width, 2 * self.kv_heads * self.head_width, bias=False)
        else:
            self.query_key_value = Linear(width, 3 * attention, bias=False)
        self.make_norms(config)
        self.attention_out = Linear(attention, width, bias=False)
        self.feed_forward_norm = RMSNorm(width, eps=config.epsilon)
        self.gate_up = Linear(width, 2 * feed_forward, bias=False)
        self.down = Linear(feed_forward, width, bias=False)

    def make_norms(self, config: ModelConfig) -> None:
        """Make the norms of queries and keys, where the architecture has them."""

    @abstractmethod
    def rotate(self, qkv_BT3HK: Tensor, rotary: Rotary, kernels: Kernels) -> Tensor:
        """Return queries, keys and values with queries and keys as attention compares them."""

    def forward(
        self,
        x_BTD: Tensor,
        rotary: Rotary,
        mask: Tensor | None,
        cache: KeyValueCache | None,
        layer: int,
        kernels: Kernels,
    ) -> Tensor:
        qkv = self.rotate(self._project(self.attention_norm(x_BTD, kernels), kernels), rotary, kernels)
        x_BTD = x_BTD + self.attention_out(attend(qkv, mask, cache, layer, kernels), kernels)
        hidden = swiglu(self.gate_up(self.feed_forward_norm(x_BTD, kernels), kernels), kernels)
        out_BTD: Tensor = x_BTD + self.down(hidden, kernels)
        return out_BTD

    def _project(self, x_BTD: Tensor, kernels: Kernels) -> Tensor:
        """Return queries, keys and values (B, T, 3, H, K); grouped heads are repeated, one for each query head."""
        B, T, _ = x_BTD.shape
        H, G, K = self.heads, self.kv_heads, self.head_width
        if not self.is_grouped:
            stacked: Tensor = self.query_key_value(x_BTD, kernels)
            return stacked.view(B, T, 3, H, K)
        grouped = self.key_value(x_BTD, kernels).view(B, T, 2, G, 1, K).expand(B, T, 2, G, H // G, K)
        return torch.cat([self.query(x_BTD, kernels).view(B, T, 1, H, K), grouped.reshape(B, T, 2, H, K)], dim=2)

    def hugging_face_tensors(self) -> dict[str, Tensor]:
        """Return the parameters under transformers' names; stacked matrices are apart, as views of their parts."""
        if self.is_grouped:
            parts = [self.query.weight, *self.key_value.weight.chunk(2)]
        else:
            parts = list(self.query_key_value.weight.chunk(3))
        named = {f"self_attn.{name}_proj.weight": part for name, part in zip("qkv", parts, strict=True)}
        for name, part in zip(("gate", "up"), self.gate_up.weight.chunk(2), strict=True):
            named[f"mlp.{name}_proj.weight"] = part
        return named | {
            "self_attn.o_proj.weight": self.attention_out.weight,
            "mlp.down_proj.weight": self.down.weight,
            "input_layernorm.weight": self.attention_norm.weight,
            "post_attention_layernorm.weight": self.feed_forward_norm.weight,
        }


def rotate_pairs(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the pairs (k, k + K/2) of the last dimension; both halves of the tables are the same."""
    rotated = x * cosine
    half = x.shape[-1] // 2
    rotated[..., :half].addcmul_(x[..., half:], sine[..., :half], value=-1)
    rotated[..., half:].addcmul_(x[..., :half], sine[..., :half])
    return rotated


class RotaryNetwork(Network):
    """A network of rotary blocks."""

    block_class: ClassVar[type[RotaryBlock]]
    norm: nn.RMSNorm
    frequencies: Tensor

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(self.block_class(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.d_model, eps=config.epsilon)
        powers = torch.arange(0, config.head_width, 2, dtype=torch.float32) / config.head_width
        self.register_buffer("frequencies", config.rope_theta**-powers, persistent=False)
        self.draw_weights(generator, residual=("attention_out.weight", "down.weight"))

    def begin(self, tokens_BT: Tensor, positions: Tensor) -> tuple[Tensor, Any]:
        angles = positions[..., None].float() * self.frequencies  # (T, K/2), or (B, T, K/2) within documents
        angles = torch.cat([angles, angles], dim=-1)
        if angles.dim() == 3:
            angles = angles[:, None]  # the same for all heads
        return self.embedding(tokens_BT), (angles.cos(), angles.sin())

    def hugging_face_config(self) -> dict[str, Any]:
        c = self.config
        return {
            "vocab_size": c.vocab_size, "hidden_size": c.d_model, "intermediate_size": c.feed_forward,
            "num_hidden_layers": c.num_layers, "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads,
            "head_dim": c.head_width, "hidden_act": "silu", "max_position_embeddings": c.context,
            "rms_norm_eps": c.epsilon, "rope_theta": c.rope_theta, "attention_bias": False, "attention_dropout": 0.0,
            "tie_word_embeddings": c.tie_embeddings,
        }  # fmt: skip

    def hugging_face_tensors(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {
            "model.embed_tokens.weight": self.embedding.weight,
            "model.norm.weight": self.norm.weight,
        }
        if self.head is not None:
            named["lm_head.weight"] = self.head
        for number, block in enumerate(self.blocks):
            assert isinstance(block, RotaryBlock)
            named |= {f"model.layers.{number}.{name}": part for name, part in block.hugging_face_tensors().items()}
        return named
