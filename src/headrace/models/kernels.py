"""The choice of the code that computes a network: it changes speed and memory, and results only by rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Matmul = Literal["default", "onednn"]
Attention = Literal["fused", "products"]

CHUNK_BYTES = 32 << 20
"""Default size of a chunk of logits. Each chunk reads and writes the whole gradient of the head: smaller ones cost
time."""
SMALL_CHUNK_BYTES = CHUNK_BYTES // 2
"""Size of a chunk of logits where memory is short."""
QUERY_BLOCK = 128
"""Queries whose scores batched products compute at a time. Keys after the last of them are left out, so that less than
the whole square is computed. Smaller blocks lose more to small products than they save."""


@dataclass(frozen=True)
class Kernels:
    """One choice of kernels. It is passed with every call, so that networks themselves have no settings."""

    matmul: Matmul = "default"
    """Library of float32 matrix products: PyTorch's default or oneDNN."""
    attention: Attention = "fused"
    """Code of attention: PyTorch's fused kernel, or batched products that keep the probabilities."""
    gradient_checkpointing: bool = False
    """Whether the backward pass recomputes the activations inside blocks instead of keeping them."""
    compile: bool = False
    """Whether whoever runs the network runs it through torch.compile."""
    head_chunk_bytes: int = CHUNK_BYTES
    """Most bytes of logits that exist at a time."""


PLAIN = Kernels()


def query_blocks(length: int) -> list[tuple[int, int]]:
    """Return the first query, and the one after the last, of each block that batched products compute at a time."""
    return [(start, min(start + QUERY_BLOCK, length)) for start in range(0, length, QUERY_BLOCK)]


def probabilities_per_token(sequence_length: int, num_heads: int) -> float:
    """Return how many probabilities attention by batched products keeps for each token of a layer.

    >>> probabilities_per_token(256, num_heads=8)  # 128 queries see 128 keys, the other 128 all 256
    1536.0
    """
    pairs = sum((end - start) * end for start, end in query_blocks(sequence_length))
    return num_heads * pairs / sequence_length
