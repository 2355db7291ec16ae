"""Llama's architecture: RMSNorm, rotary positions, SwiGLU; Qwen3's without its norms of queries and keys.

A saved one is a `LlamaForCausalLM`. Mistral's is the same where it has no sliding window.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headrace.models.architecture import register
from headrace.models.built_in.rotary import Rotary, RotaryArchitecture, RotaryBlock, RotaryNetwork, rotate_pairs
from headrace.models.config import ModelConfig
from headrace.models.hugging_face import HuggingFaceConfig, UnsupportedError
from headrace.models.kernels import Kernels
from headrace.models.network import Network


class LlamaArchitecture(RotaryArchitecture):
    """The facts of Llama."""

    name = "llama"
    hugging_face_types = ("llama", "mistral")
    default_epsilon = 1e-5

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        if config.d_model % config.heads:  # only where head_dim is given
            raise ValueError(
                f"num_heads {config.heads} does not divide d_model {config.d_model}, which transformers' Llama needs"
                " whatever head_dim is"
            )

    def read_hugging_face(self, values: HuggingFaceConfig) -> dict[str, Any]:
        is_mistral = values.get("model_type") == "mistral"
        if is_mistral and values.get("sliding_window", 4096) is not None:  # 4,096 is what transformers takes
            raise UnsupportedError("sliding window attention (sliding_window is not null)")
        if is_mistral and values.get("num_key_value_heads") is None:
            raise UnsupportedError("grouped heads of an unknown number (config.json has no num_key_value_heads)")
        return super().read_hugging_face(values)

    def build(self, config: ModelConfig, generator: torch.Generator) -> Network:
        return Llama(config, generator)


class Block(RotaryBlock):
    """A layer that rotates queries and keys as they are."""

    def rotate(self, qkv_BT3HK: Tensor, rotary: Rotary, kernels: Kernels) -> Tensor:
        rotate: Any = rotate_queries_and_keys if kernels.compile else _Rotate.apply
        rotated: Tensor = rotate(qkv_BT3HK, *rotary)
        return rotated


def rotate_queries_and_keys(qkv_BT3HK: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the pairs (k, k + K/2) of queries and keys by the angle of their position, in full precision."""
    qk_2BHTK = qkv_BT3HK[:, :, :2].permute(2, 0, 3, 1, 4).float()
    first, second = qk_2BHTK.chunk(2, dim=-1)
    rotated = qk_2BHTK * cosine + torch.cat([-second, first], dim=-1) * sine
    return torch.cat([rotated.permute(1, 3, 0, 2, 4).to(qkv_BT3HK.dtype), qkv_BT3HK[:, :, 2:]], dim=2)


class _Rotate(torch.autograd.Function):
    """The same in one step. Queries, keys and values come out as attention by batched products wants them."""

    @staticmethod
    def forward(ctx: Any, qkv_BT3HK: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        qkv_3BHTK = qkv_BT3HK.permute(2, 0, 3, 1, 4)
        out_3BHTK = torch.empty_like(qkv_3BHTK, memory_format=torch.contiguous_format)
        out_3BHTK[:2] = rotate_pairs(qkv_3BHTK[:2].float(), cosine, sine)
        out_3BHTK[2] = qkv_3BHTK[2]
        return out_3BHTK.permute(1, 3, 0, 2, 4)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        grads_3BHTK = gradients[0].permute(2, 0, 3, 1, 4)
        out_BT3HK = torch.empty(gradients[0].shape, dtype=gradients[0].dtype, device=cosine.device)
        out_3BHTK = out_BT3HK.permute(2, 0, 3, 1, 4)
        out_3BHTK[:2] = rotate_pairs(grads_3BHTK[:2].float(), cosine, -sine)  # the same angles, backwards
        out_3BHTK[2] = grads_3BHTK[2]
        return out_BT3HK, None, None


class Llama(RotaryNetwork):
    """The network of Llama."""

    block_class = Block

    def hugging_face_config(self) -> dict[str, Any]:
        kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False}
        return kind | super().hugging_face_config()


register(LlamaArchitecture())
