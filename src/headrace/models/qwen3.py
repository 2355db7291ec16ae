"""Qwen3's shape: RMSNorm, rotary positions, normalised queries and keys, SwiGLU. Saved, it is a `Qwen3ForCausalLM`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from headrace.models.config import ModelConfig
from headrace.models.kernels import Kernels
from headrace.models.linear import Linear
from headrace.models.network import KeyValueCache, Network, attend

EPSILON = 1e-6


class Block(nn.Module):
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
    """Turn pairs (k, k + K/2) by the angle of their position."""
    first, second = x_BHTK.chunk(2, dim=-1)
    return x_BHTK * cosine + torch.cat([-second, first], dim=-1) * sine


class Qwen3(Network):
    frequencies: Tensor

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.d_model, eps=EPSILON)
        self.head = None if config.tie_embeddings else nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        powers = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self.register_buffer("frequencies", config.rope_theta**-powers, persistent=False)
        residual_std = 0.02 / math.sqrt(2 * config.num_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_residual = name.endswith(("attention_out.weight", "down.weight"))
                nn.init.normal_(parameter, std=residual_std if is_residual else 0.02, generator=generator)

    def begin(self, tokens_BT: Tensor, positions: Tensor) -> tuple[Tensor, Any]:
        angles = positions[..., None].float() * self.frequencies  # (T, K/2), or (B, T, K/2) within documents
        angles = torch.cat([angles, angles], dim=-1)
        if angles.dim() == 3:
            angles = angles[:, None]  # the same for all heads
        return self.embedding(tokens_BT), (angles.cos(), angles.sin())

    def finish(self, x_BTD: Tensor) -> Tensor:
        return self.norm(x_BTD)  # type: ignore[no-any-return]

    def to_hugging_face(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        c = self.config
        config = {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": c.vocab_size,
            "hidden_size": c.d_model, "intermediate_size": c.feed_forward, "num_hidden_layers": c.num_layers,
            "num_attention_heads": c.heads, "num_key_value_heads": c.heads, "head_dim": c.head_dim,
            "hidden_act": "silu", "max_position_embeddings": c.context, "rms_norm_eps": EPSILON,
            "rope_theta": c.rope_theta, "attention_bias": False, "use_sliding_window": False,
            "attention_dropout": 0.0, "tie_word_embeddings": c.tie_embeddings,
        }  # fmt: skip
        return config, {name: tensor.detach().contiguous() for name, tensor in self._named().items()}

    def load_hugging_face(self, tensors: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, own in self._named().items():
                own.copy_(tensors[name])

    def _named(self) -> dict[str, Tensor]:
        """Own tensors under Qwen3's names; joined matrices are views of their parts."""
        named: dict[str, Tensor] = {
            "model.embed_tokens.weight": self.embedding.weight,
            "model.norm.weight": self.norm.weight,
        }
        if self.head is not None:
            named["lm_head.weight"] = self.head
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            prefix = f"model.layers.{number}"
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
