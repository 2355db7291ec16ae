"""Dropout that is a pure function of the rows: every engine, process and resumed run drops the same numbers.

Each row of a batch has a key. Which numbers of it are dropped follows from the key, the token's position, the site in
the network and the column, by a mixing function of 32 bits; native/src/dropout.h computes the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

GOLDEN, WORD = 0x9E3779B9, 0xFFFFFFFF
AT_BLOCKS, AT_HEAD = 0, 1
"""Sites of dropout: what goes into the blocks, and what goes into the head."""

# Shapes: B rows, T tokens, D width.


class Dropout(NamedTuple):
    """The numbers of some rows that are set to zero while training; those that stay grow in their place."""

    rate: float
    keys: Tensor
    """A number below 2^32 for each row."""

    def __call__(self, x_BTD: Tensor, site: int) -> Tensor:
        """Return what is kept at a site of the network."""
        return _Kept.apply(x_BTD, self.rate, self.keys, site)  # type: ignore[no-any-return,no-untyped-call]


class _Kept(torch.autograd.Function):
    """What dropout leaves of numbers. The backward pass computes the mask again: it takes memory for a moment only."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, rate: float, keys_B: Tensor, site: int) -> Tensor:
        ctx.save_for_backward(keys_B)
        ctx.rate, ctx.site = rate, site
        return _drop(x_BTD, rate, keys_B, site)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        (keys_B,) = ctx.saved_tensors
        return _drop(gradients[0], ctx.rate, keys_B, ctx.site), None, None, None


def _drop(x_BTD: Tensor, rate: float, keys_B: Tensor, site: int) -> Tensor:
    _, T, D = x_BTD.shape
    device = x_BTD.device
    keys_BT = _mix(_mix(keys_B[:, None] + GOLDEN * torch.arange(1, T + 1, device=device)) + site)
    numbers_BTD = _mix(keys_BT[:, :, None] + GOLDEN * torch.arange(D, device=device))
    return torch.where(numbers_BTD >= threshold(rate), x_BTD * (1 / (1 - rate)), 0)


def drop(dropout: Dropout | None, x_BTD: Tensor, site: int) -> Tensor:
    """Return what is kept at a site of the network: everything where there is no dropout."""
    return x_BTD if dropout is None else dropout(x_BTD, site)


def threshold(rate: float) -> int:
    """Return the least number of 32 bits that is kept."""
    return int(rate * (WORD + 1))


def row_keys(seed: int, first_row: int, num_rows: int) -> npt.NDArray[Any]:
    """Return the keys of consecutive rows of a run; rows are counted over all of its steps and processes.

    >>> row_keys(0, first_row=10, num_rows=3).tolist()[1:] == row_keys(0, first_row=11, num_rows=2).tolist()
    True
    """
    rows = range(first_row, first_row + num_rows)
    return np.array([_mix64(_mix64(seed) + row) >> 32 for row in rows], dtype=np.uint32)


def _mix(words: Tensor) -> Tensor:
    """Mix the bits of numbers below 2^32 so that every bit of the result depends on all of them (murmur3)."""
    words = words & WORD
    words = ((words ^ (words >> 16)) * 0x85EBCA6B) & WORD
    words = ((words ^ (words >> 13)) * 0xC2B2AE35) & WORD
    return words ^ (words >> 16)


def _mix64(word: int) -> int:
    """Mix the bits of a number (splitmix64)."""
    word = (word + 0x9E3779B97F4A7C15) % (1 << 64)
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return word ^ (word >> 31)
