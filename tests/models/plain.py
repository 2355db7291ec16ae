"""The networks once more, in nothing but PyTorch's own operations, to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, rms_norm, silu

from headrace.models.attention import document_mask
from headrace.models.candidates import Candidates
from headrace.models.network import Network, document_positions


def plain_loss(
    network: Network,
    inputs_BT: Tensor,
    targets_BT: Tensor,
    documents_BT: Tensor | None,
    reduction: str = "mean",
    drop: Callable[[Tensor, int], Tensor] = lambda x, site: x,
    candidates: Candidates | None = None,
) -> Tensor:
    """Return the mean cross-entropy of a network's parameters, or with reduction "none" that of each target.

    `drop`: what is kept of what goes into the blocks, and of what goes into the head. `candidates`: the tokens that are
    compared, where not all are.
    """
    documents = torch.zeros_like(inputs_BT) if documents_BT is None else documents_BT
    positions, mask = document_positions(documents), document_mask(documents)
    x = network.embedding(inputs_BT)
    if network.config.arch == "gpt2":
        x = x + network.positions(positions)  # type: ignore[operator]
    x = drop(x, 0)
    for block in network.blocks:
        x = (_gpt2_block if network.config.arch == "gpt2" else _qwen3_block)(block, x, positions, mask)
    norm: Any = network.norm
    x = drop(_norm(norm, x), 1)
    logits = x @ network.head_weight_VD.T
    if candidates is not None:
        logits = logits[..., candidates.ids] + torch.from_numpy(candidates.offsets)
        targets_BT = torch.from_numpy(candidates.place(targets_BT.numpy())).long()
    return cross_entropy(logits.flatten(0, 1), targets_BT.flatten(), reduction=reduction)


def _norm(norm: Any, x: Tensor) -> Tensor:
    if isinstance(norm, torch.nn.LayerNorm):
        return layer_norm(x, norm.normalized_shape, norm.weight, norm.bias)
    return rms_norm(x, norm.normalized_shape, norm.weight, 1e-6)


def _split(block: Any, x: Tensor) -> tuple[Tensor, ...]:
    stacked = linear(_norm(block.attention_norm, x), block.query_key_value.weight, block.query_key_value.bias)
    return stacked.unflatten(2, (3, block.heads, -1)).permute(2, 0, 3, 1, 4).unbind()


def _attention(block: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = (query @ key.mT) / query.shape[-1] ** 0.5
    gathered = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value
    return linear(gathered.transpose(1, 2).flatten(2), block.attention_out.weight, block.attention_out.bias)


def _gpt2_block(block: Any, x: Tensor, _: Tensor, mask: Tensor) -> Tensor:
    x = x + _attention(block, *_split(block, x), mask)
    hidden = gelu(linear(_norm(block.feed_forward_norm, x), block.up.weight, block.up.bias), approximate="tanh")
    return x + linear(hidden, block.down.weight, block.down.bias)


def _qwen3_block(block: Any, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    query, key, value = _split(block, x)
    query, key = (_rotate(_norm(norm, y), positions) for norm, y in ((block.query_norm, query), (block.key_norm, key)))
    x = x + _attention(block, query, key, value, mask)
    gate, up = linear(_norm(block.feed_forward_norm, x), block.gate_up.weight).chunk(2, dim=-1)
    return x + linear(silu(gate) * up, block.down.weight)


def _rotate(x_BHTK: Tensor, positions_BT: Tensor) -> Tensor:
    width = x_BHTK.shape[-1]
    angles = positions_BT[:, None, :, None] * 1_000_000.0 ** -(torch.arange(0, width, 2) / width)
    first, second = x_BHTK.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
