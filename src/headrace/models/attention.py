"""Causal attention in two ways: PyTorch's fused kernel, or batched products with a backward pass of their own.

The fused kernel never holds the scores of all pairs of tokens, and wins on long sequences. Batched products keep the
probabilities, and on a CPU are faster on short ones: docs/design/execution.md has figures.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from headrace.models.kernels import Kernels, query_blocks

# Shapes: B rows, T tokens, H heads, K width per head, N = B x H.


class KeyValueCache:
    """The keys and values of all earlier tokens, so that decoding computes each only once."""

    def __init__(self, num_layers: int) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    @property
    def length(self) -> int:
        """The number of tokens in the cache."""
        return 0 if self.layers[0] is None else self.layers[0][0].shape[2]

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens to a layer, and return all that it has."""
        held = self.layers[layer]
        if held is not None:
            key_BHTK = torch.cat([held[0], key_BHTK], dim=2)
            value_BHTK = torch.cat([held[1], value_BHTK], dim=2)
        self.layers[layer] = (key_BHTK, value_BHTK)
        return key_BHTK, value_BHTK


def attend(qkv_BT3HK: Tensor, mask: Tensor | None, cache: KeyValueCache | None, layer: int, kernels: Kernels) -> Tensor:
    """Return what tokens gather from earlier ones, (B, T, H x K), by their queries, keys and values.

    A mask (`document_mask`) takes the place of plain causality. With a cache, the keys and values of earlier tokens
    of this layer count too, and the new ones are added to it.
    """
    if kernels.attention == "products" and cache is None and not kernels.compile:
        return _Products.apply(qkv_BT3HK, mask)  # type: ignore[no-any-return,no-untyped-call]
    query, key, value = qkv_BT3HK.permute(2, 0, 3, 1, 4)
    if cache is not None:
        key, value = cache.extend(layer, key, value)
    new, known = query.shape[2], key.shape[2]
    is_causal = mask is None and new > 1
    if is_causal and known > new:  # several new tokens after a cache
        mask = torch.ones(new, known, dtype=torch.bool, device=query.device).tril(known - new)
        is_causal = False
    out_BHTK = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
    return out_BHTK.transpose(1, 2).flatten(2)


def document_mask(documents_BT: Tensor) -> Tensor:
    """Return the mask (B, 1, T, T) by which tokens see earlier tokens of their document; padding sees padding."""
    same = documents_BT[:, None, :, None] == documents_BT[:, None, None, :]
    length = documents_BT.shape[1]
    return same & torch.ones(length, length, dtype=torch.bool, device=documents_BT.device).tril()


class _Products(torch.autograd.Function):
    """Attention by batched products, a block of queries at a time. Keeps queries, keys, values and probabilities."""

    @staticmethod
    def forward(ctx: Any, qkv_BT3HK: Tensor, mask: Tensor | None) -> Tensor:
        B, T, _, H, K = qkv_BT3HK.shape
        qkv_3NTK = qkv_BT3HK.permute(2, 0, 3, 1, 4).reshape(3, B * H, T, K)
        query, key, value = qkv_3NTK
        out_NTK = torch.empty_like(query)
        kept = []
        for start, end in query_blocks(T):
            bias = query.new_full((end - start, end), -math.inf).triu_(start + 1)
            scores = torch.baddbmm(bias, query[:, start:end], key[:, :end].transpose(1, 2), alpha=K**-0.5)
            if mask is not None:
                scores.view(B, H, end - start, end).masked_fill_(~mask[:, :, start:end, :end], -math.inf)
            probabilities = torch.softmax(scores, -1, out=scores)
            out_NTK[:, start:end] = torch.bmm(probabilities, value[:, :end])
            kept.append(probabilities)
        ctx.save_for_backward(qkv_3NTK, *kept)
        ctx.shape = (B, T, H, K)
        return out_NTK.view(B, H, T, K).transpose(1, 2).reshape(B, T, H * K)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        B, T, H, K = ctx.shape
        qkv_3NTK, *kept = ctx.saved_tensors
        query, key, value = qkv_3NTK
        grad_NTK = gradients[0].view(B, T, H, K).transpose(1, 2).reshape(B * H, T, K)
        grads_3NTK = torch.empty_like(qkv_3NTK)
        grad_query, grad_key, grad_value = grads_3NTK
        for (start, end), probabilities in reversed(list(zip(query_blocks(T), kept, strict=True))):
            grad = grad_NTK[:, start:end]
            grad_scores = torch._softmax_backward_data(
                torch.bmm(grad, value[:, :end].transpose(1, 2)), probabilities, -1, probabilities.dtype
            ).mul_(K**-0.5)
            grad_query[:, start:end] = torch.bmm(grad_scores, key[:, :end])
            parts = (
                (grad_key, torch.bmm(grad_scores.transpose(1, 2), query[:, start:end])),
                (grad_value, torch.bmm(probabilities.transpose(1, 2), grad)),
            )
            for total, part in parts:  # the last block sees all keys, so it comes first and fills them
                _ = total.copy_(part) if end == T else total[:, :end].add_(part)
        return grads_3NTK.view(3, B, H, T, K).permute(1, 3, 0, 2, 4), None
