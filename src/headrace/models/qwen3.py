"""Qwen3's architecture: RMSNorm, rotary positions, normalised queries and keys, SwiGLU.

A saved one is a `Qwen3ForCausalLM`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from headrace.models.architecture import Architecture, Matrix, Part, register
from headrace.models.config import ModelConfig
from headrace.models.kernels import Kernels
from headrace.models.linear import Linear
from headrace.models.network import KeyValueCache, Network, attend

EPSILON = 1e-6


class Qwen3Architecture(Architecture):
    """The facts of Qwen3."""

    name = "qwen3"

    def default_feed_forward(self, d_model: int) -> int:
        return max(64, round(d_model / 24) * 64)  # 8/3 of the width, to the nearest 64

    def check(self, config: ModelConfig) -> None:
        if config.head_dim % 2:
            raise ValueError(f"rotary positions need an even width per head; d_model / num_heads is {config.head_dim}")

    def block_matrices(self, config: ModelConfig) -> list[Matrix]:
        width, feed_forward = config.d_model, config.feed_forward
        return [
            Matrix("attention", "query_key_value.weight", width, width, stacked=3),
            Matrix("attention", "attention_out.weight", width, width),
            Matrix("feed-forward", "gate_up.weight", feed_forward, width, stacked=2),
            Matrix("feed-forward", "down.weight", width, feed_forward),
        ]

    def other_parameters(self, config: ModelConfig) -> dict[Part, int]:
        return {"norms": (2 * config.num_layers + 1) * config.d_model + config.num_layers * 2 * config.head_dim}

    def activation_bytes(self, config: ModelConfig, precision: str) -> int:
        width, feed_forward = config.d_model, config.feed_forward
        return {"float32": 60 * width + 16 * feed_forward, "bfloat16": 50 * width + 8 * feed_forward}[precision]

    def build(self, config: ModelConfig, generator: torch.Generator) -> Network:
        return Qwen3(config, generator)


class Block(nn.Module):
    """One layer: attention, then a feed-forward part, each after a norm and added to what came in."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, feed_forward = config.d_model, config.feed_forward
        self.heads, self.head_dim = config.heads, config.head_dim
        self.attention_norm = nn.RMSNorm(width, eps=EPSILON)
        # One product for queries, keys and values, and one for gate and up: larger matrices run nearer the peak.
        self.query_key_value = Linear(width, 3 * width, bias=False)
        self.query_norm = nn.RMSNorm(config.head_dim, eps=EPSILON)
        self.key_norm = nn.RMSNorm(config.head_dim, eps=EPSILON)
        self.attention_out = Linear(width, width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width, eps=EPSILON)
        self.gate_up = Linear(width, 2 * feed_forward, bias=False)
        self.down = Linear(feed_forward, width, bias=False)

    def forward(
        self,
        x_BTD: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: KeyValueCache | None,
        layer: int,
        kernels: Kernels,
    ) -> Tensor:
        B, T, _ = x_BTD.shape
        qkv = self.query_key_value(self.attention_norm(x_BTD), kernels).view(B, T, 3, self.heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        # Norms and rotation in full precision, also under autocast; attention in that of the values.
        query = rotate(self.query_norm(query.float()), *rotary).to(value.dtype)
        key = rotate(self.key_norm(key.float()), *rotary).to(value.dtype)
        if cache is not None:
            key, value = cache.extend(layer, key, value)
        x_BTD = x_BTD + self.attention_out(attend(query, key, value, mask), kernels)
        gate, up = self.gate_up(self.feed_forward_norm(x_BTD), kernels).chunk(2, dim=-1)
        out_BTD: Tensor = x_BTD + self.down(silu(gate) * up, kernels)
        return out_BTD


def rotate(x_BHTK: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the pairs (k, k + K/2) by the angle of their position."""
    first, second = x_BHTK.chunk(2, dim=-1)
    return x_BHTK * cosine + torch.cat([-second, first], dim=-1) * sine


class Qwen3(Network):
    """The network of Qwen3."""

    norm: nn.RMSNorm
    frequencies: Tensor

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.d_model, eps=EPSILON)
        powers = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
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
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": c.vocab_size,
            "hidden_size": c.d_model, "intermediate_size": c.feed_forward, "num_hidden_layers": c.num_layers,
            "num_attention_heads": c.heads, "num_key_value_heads": c.heads, "head_dim": c.head_dim,
            "hidden_act": "silu", "max_position_embeddings": c.context, "rms_norm_eps": EPSILON,
            "rope_theta": c.rope_theta, "attention_bias": False, "use_sliding_window": False,
            "attention_dropout": 0.0, "tie_word_embeddings": c.tie_embeddings,
        }  # fmt: skip

    def hugging_face_tensors(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {
            "model.embed_tokens.weight": self.embedding.weight,
            "model.norm.weight": self.norm.weight,
        }
        if self.head is not None:
            named["lm_head.weight"] = self.head
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            prefix = f"model.layers.{number}"
            # Stacked matrices are saved apart, as views of their parts.
            for name, part in zip("qkv", block.query_key_value.weight.chunk(3), strict=True):
                named[f"{prefix}.self_attn.{name}_proj.weight"] = part
            for name, part in zip(("gate", "up"), block.gate_up.weight.chunk(2), strict=True):
                named[f"{prefix}.mlp.{name}_proj.weight"] = part
            named |= {
                f"{prefix}.self_attn.o_proj.weight": block.attention_out.weight,
                f"{prefix}.self_attn.q_norm.weight": block.query_norm.weight,
                f"{prefix}.self_attn.k_norm.weight": block.key_norm.weight,
                f"{prefix}.mlp.down_proj.weight": block.down.weight,
                f"{prefix}.input_layernorm.weight": block.attention_norm.weight,
                f"{prefix}.post_attention_layernorm.weight": block.feed_forward_norm.weight,
            }
        return named


register(Qwen3Architecture())
