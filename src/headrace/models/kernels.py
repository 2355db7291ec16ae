"""The choice of the code that computes a network: it changes speed and memory, and results only by rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Matmul = Literal["default", "onednn"]

CHUNK_BYTES = 32 << 20
"""Default size of a chunk of logits. Each chunk reads and writes the whole gradient of the head: smaller ones cost
time."""
SMALL_CHUNK_BYTES = CHUNK_BYTES // 2
"""Size of a chunk of logits where memory is short."""


@dataclass(frozen=True)
class Kernels:
    """One choice of kernels. It is passed with every call, so that networks themselves have no settings."""

    matmul: Matmul = "default"
    """Library of float32 matrix products: PyTorch's default or oneDNN."""
    gradient_checkpointing: bool = False
    """Whether the backward pass recomputes the activations inside blocks instead of keeping them."""
    compile: bool = False
    """Whether whoever runs the network runs it through torch.compile."""
    head_chunk_bytes: int = CHUNK_BYTES
    """Most bytes of logits that exist at a time."""


PLAIN = Kernels()
