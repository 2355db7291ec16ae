"""Qwen3's architecture: RMSNorm, rotary positions, normalised queries and keys, SwiGLU.

A saved one is a `Qwen3ForCausalLM`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import rms_norm

from headrace.models.architecture import Architecture, Matrix, Part, register
from headrace.models.attention import KeyValueCache, attend
from headrace.models.config import ModelConfig
from headrace.models.kernels import Kernels
from headrace.models.linear import Linear
from headrace.models.network import Network
from headrace.models.pointwise import RMSNorm, inverse_rms, rms_norm_backward, swiglu

EPSILON = 1e-6


class Qwen3Architecture(Architecture):
    """The facts of Qwen3."""

    name = "qwen3"
    native_kind = "qwen3"

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
        return {"float32": 44 * width + 12 * feed_forward, "bfloat16": 26 * width + 6 * feed_forward}[precision]

    def build(self, config: ModelConfig, generator: torch.Generator) -> Network:
        return Qwen3(config, generator)


class Block(nn.Module):
    """One layer: attention, then a feed-forward part, each after a norm and added to what came in."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, feed_forward = config.d_model, config.feed_forward
        self.heads, self.head_dim = config.heads, config.head_dim
        self.attention_norm = RMSNorm(width, eps=EPSILON)
        # One product for queries, keys and values, and one for gate and up: larger matrices run nearer the peak.
        self.query_key_value = Linear(width, 3 * width, bias=False)
        self.query_norm = nn.RMSNorm(config.head_dim, eps=EPSILON)
        self.key_norm = nn.RMSNorm(config.head_dim, eps=EPSILON)
        self.attention_out = Linear(width, width, bias=False)
        self.feed_forward_norm = RMSNorm(width, eps=EPSILON)
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
        qkv = self.query_key_value(self.attention_norm(x_BTD, kernels), kernels)
        qkv = qkv.view(B, T, 3, self.heads, self.head_dim)
        rotate: Any = normalise_and_rotate if kernels.compile else _NormaliseAndRotate.apply
        qkv = rotate(qkv, self.query_norm.weight, self.key_norm.weight, *rotary)
        x_BTD = x_BTD + self.attention_out(attend(qkv, mask, cache, layer, kernels), kernels)
        hidden = swiglu(self.gate_up(self.feed_forward_norm(x_BTD, kernels), kernels), kernels)
        out_BTD: Tensor = x_BTD + self.down(hidden, kernels)
        return out_BTD


def normalise_and_rotate(
    qkv_BT3HK: Tensor, query_weight_K: Tensor, key_weight_K: Tensor, cosine: Tensor, sine: Tensor
) -> Tensor:
    """Normalise queries and keys, and rotate their pairs (k, k + K/2) by the angle of their position.

    In full precision, also under autocast; the result has the precision of the values, which stay as they are.
    """
    qk_2BHTK = qkv_BT3HK[:, :, :2].permute(2, 0, 3, 1, 4).float()
    qk_2BHTK = rms_norm(qk_2BHTK, query_weight_K.shape, eps=EPSILON) * _stacked(query_weight_K, key_weight_K)
    first, second = qk_2BHTK.chunk(2, dim=-1)
    rotated = qk_2BHTK * cosine + torch.cat([-second, first], dim=-1) * sine
    return torch.cat([rotated.permute(1, 3, 0, 2, 4).to(qkv_BT3HK.dtype), qkv_BT3HK[:, :, 2:]], dim=2)


class _NormaliseAndRotate(torch.autograd.Function):
    """The same in one step. Queries, keys and values come out as attention by batched products wants them."""

    @staticmethod
    def forward(
        ctx: Any, qkv_BT3HK: Tensor, query_weight_K: Tensor, key_weight_K: Tensor, cosine: Tensor, sine: Tensor
    ) -> Tensor:
        qkv_3BHTK = qkv_BT3HK.permute(2, 0, 3, 1, 4)
        out_3BHTK = torch.empty_like(qkv_3BHTK, memory_format=torch.contiguous_format)
        qk_2BHTK = qkv_3BHTK[:2].float()
        factor = inverse_rms(qk_2BHTK, EPSILON)
        normed = qk_2BHTK * factor
        ctx.save_for_backward(normed.to(qkv_BT3HK.dtype), factor, query_weight_K, key_weight_K, cosine, sine)
        out_3BHTK[:2] = _rotate(normed * _stacked(query_weight_K, key_weight_K), cosine, sine)
        out_3BHTK[2] = qkv_3BHTK[2]
        return out_3BHTK.permute(1, 3, 0, 2, 4)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        normed, factor, query_weight_K, key_weight_K, cosine, sine = ctx.saved_tensors
        normed = normed.float()
        grads_3BHTK = gradients[0].permute(2, 0, 3, 1, 4)
        grad = _rotate(grads_3BHTK[:2].float(), cosine, -sine)  # the same angles, backwards
        grad_2K = (grad * normed).sum((1, 2, 3))
        grad = rms_norm_backward(grad.mul_(_stacked(query_weight_K, key_weight_K)), normed, factor)
        out_BT3HK = torch.empty(gradients[0].shape, dtype=gradients[0].dtype, device=grad.device)
        out_3BHTK = out_BT3HK.permute(2, 0, 3, 1, 4)
        out_3BHTK[:2] = grad
        out_3BHTK[2] = grads_3BHTK[2]
        return out_BT3HK, *grad_2K, None, None


def _stacked(query_weight_K: Tensor, key_weight_K: Tensor) -> Tensor:
    """Return the weights of both norms as a factor for queries and keys of shape (2, B, H, T, K)."""
    return torch.stack([query_weight_K, key_weight_K])[:, None, None, None]


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the pairs (k, k + K/2) of the last dimension; both halves of the tables are the same."""
    rotated = x * cosine
    half = x.shape[-1] // 2
    rotated[..., :half].addcmul_(x[..., half:], sine[..., :half], value=-1)
    rotated[..., half:].addcmul_(x[..., :half], sine[..., :half])
    return rotated


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
