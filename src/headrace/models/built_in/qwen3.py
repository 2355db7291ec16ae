"""Qwen3's architecture: RMSNorm, rotary positions, normalised queries and keys, SwiGLU.

A saved one is a `Qwen3ForCausalLM`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import rms_norm

from headrace.models.architecture import Part, register
from headrace.models.built_in.rotary import Rotary, RotaryArchitecture, RotaryBlock, RotaryNetwork, rotate_pairs
from headrace.models.config import ModelConfig
from headrace.models.hugging_face import HuggingFaceConfig
from headrace.models.kernels import Kernels
from headrace.models.network import Network
from headrace.models.pointwise import inverse_rms, rms_norm_backward


class Qwen3Architecture(RotaryArchitecture):
    """The facts of Qwen3."""

    name = "qwen3"
    native_kind = "qwen3"
    hugging_face_types = ("qwen3",)
    default_epsilon = 1e-6

    def why_not_native(self, config: ModelConfig) -> str:
        if config.kv_heads != config.heads:
            return f"grouped heads (model.num_kv_heads={config.num_kv_heads})"
        if config.attention_width != config.d_model:
            return f"heads that are together wider or narrower than the model (model.head_dim={config.head_dim})"
        return super().why_not_native(config)

    def other_parameters(self, config: ModelConfig) -> dict[Part, int]:
        norms = super().other_parameters(config)["norms"]
        return {"norms": norms + config.num_layers * 2 * config.head_width}

    def activation_bytes(self, config: ModelConfig, precision: str) -> int:
        normalised = {"float32": 8, "bfloat16": 4}[precision] * config.attention_width
        return super().activation_bytes(config, precision) + normalised

    def read_hugging_face(self, values: HuggingFaceConfig) -> dict[str, Any]:
        values.refuse_if_set("use_sliding_window", "sliding window attention")
        return super().read_hugging_face(values)

    def default_kv_heads(self, heads: int) -> int | None:
        return None  # transformers takes 32 whatever the model has

    def default_head_dim(self, usual: int) -> int | None:
        return None  # transformers takes 128 whatever the model has

    def build(self, config: ModelConfig, generator: torch.Generator) -> Network:
        return Qwen3(config, generator)


class Block(RotaryBlock):
    """A layer that normalises queries and keys before it rotates them."""

    def make_norms(self, config: ModelConfig) -> None:
        self.epsilon = config.epsilon
        self.query_norm = nn.RMSNorm(config.head_width, eps=config.epsilon)
        self.key_norm = nn.RMSNorm(config.head_width, eps=config.epsilon)

    def rotate(self, qkv_BT3HK: Tensor, rotary: Rotary, kernels: Kernels) -> Tensor:
        rotate: Any = normalise_and_rotate if kernels.compile else _NormaliseAndRotate.apply
        rotated: Tensor = rotate(qkv_BT3HK, self.query_norm.weight, self.key_norm.weight, *rotary, self.epsilon)
        return rotated

    def hugging_face_tensors(self) -> dict[str, Tensor]:
        norms = {"self_attn.q_norm.weight": self.query_norm.weight, "self_attn.k_norm.weight": self.key_norm.weight}
        return super().hugging_face_tensors() | norms


def normalise_and_rotate(
    qkv_BT3HK: Tensor, query_weight_K: Tensor, key_weight_K: Tensor, cosine: Tensor, sine: Tensor, epsilon: float
) -> Tensor:
    """Normalise queries and keys, and rotate their pairs (k, k + K/2) by the angle of their position.

    In full precision, also under autocast; the result has the precision of the values, which stay as they are.
    """
    qk_2BHTK = qkv_BT3HK[:, :, :2].permute(2, 0, 3, 1, 4).float()
    qk_2BHTK = rms_norm(qk_2BHTK, query_weight_K.shape, eps=epsilon) * _stacked(query_weight_K, key_weight_K)
    first, second = qk_2BHTK.chunk(2, dim=-1)
    rotated = qk_2BHTK * cosine + torch.cat([-second, first], dim=-1) * sine
    return torch.cat([rotated.permute(1, 3, 0, 2, 4).to(qkv_BT3HK.dtype), qkv_BT3HK[:, :, 2:]], dim=2)


class _NormaliseAndRotate(torch.autograd.Function):
    """The same in one step. Queries, keys and values come out as attention by batched products wants them."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv_BT3HK: Tensor,
        query_weight_K: Tensor,
        key_weight_K: Tensor,
        cosine: Tensor,
        sine: Tensor,
        epsilon: float,
    ) -> Tensor:
        qkv_3BHTK = qkv_BT3HK.permute(2, 0, 3, 1, 4)
        out_3BHTK = torch.empty_like(qkv_3BHTK, memory_format=torch.contiguous_format)
        qk_2BHTK = qkv_3BHTK[:2].float()
        factor = inverse_rms(qk_2BHTK, epsilon)
        normed = qk_2BHTK * factor
        ctx.save_for_backward(normed.to(qkv_BT3HK.dtype), factor, query_weight_K, key_weight_K, cosine, sine)
        out_3BHTK[:2] = rotate_pairs(normed * _stacked(query_weight_K, key_weight_K), cosine, sine)
        out_3BHTK[2] = qkv_3BHTK[2]
        return out_3BHTK.permute(1, 3, 0, 2, 4)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        normed, factor, query_weight_K, key_weight_K, cosine, sine = ctx.saved_tensors
        normed = normed.float()
        grads_3BHTK = gradients[0].permute(2, 0, 3, 1, 4)
        grad = rotate_pairs(grads_3BHTK[:2].float(), cosine, -sine)  # the same angles, backwards
        grad_2K = (grad * normed).sum((1, 2, 3))
        grad = rms_norm_backward(grad.mul_(_stacked(query_weight_K, key_weight_K)), normed, factor)
        out_BT3HK = torch.empty(gradients[0].shape, dtype=gradients[0].dtype, device=grad.device)
        out_3BHTK = out_BT3HK.permute(2, 0, 3, 1, 4)
        out_3BHTK[:2] = grad
        out_3BHTK[2] = grads_3BHTK[2]
        return out_BT3HK, *grad_2K, None, None, None


def _stacked(query_weight_K: Tensor, key_weight_K: Tensor) -> Tensor:
    """Return the weights of both norms as a factor for queries and keys of shape (2, B, H, T, K)."""
    return torch.stack([query_weight_K, key_weight_K])[:, None, None, None]


class Qwen3(RotaryNetwork):
    """The network of Qwen3."""

    block_class = Block

    def hugging_face_config(self) -> dict[str, Any]:
        kind = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False}
        return kind | super().hugging_face_config()


register(Qwen3Architecture())
