"""A keyed permutation of any range, computed element by element: shuffling without an index array."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

_ROUNDS = 6  # four make a Feistel network a strong permutation (Luby, Rackoff); small ranges need a few more


def make_key(*parts: int | str) -> bytes:
    """A key from whatever the permutation may depend on.

    >>> make_key("windows", 0, 1) != make_key("windows", 1, 0)
    True
    """
    return hashlib.blake2b(repr(parts).encode(), digest_size=4 * _ROUNDS).digest()


def permute(values: npt.NDArray[np.int64], size: int, key: bytes) -> npt.NDArray[np.int64]:
    """Send each of `values` in [0, size) to its place in a permutation of [0, size) that the key determines.

    A Feistel network permutes a rectangle of about the square root of the size each way; the few values that land
    beyond the range go round again, which keeps it a permutation of the range. Memory and time depend on how many
    values are asked for, not on the size.
    """
    assert 0 < size <= 1 << 32
    keys = np.frombuffer(key, dtype="<u4")
    height = math.isqrt(size - 1) + 1
    width = -(-size // height)
    result = _network(values, height, width, keys)
    outside = np.flatnonzero(result >= size)
    while len(outside):
        again = _network(result[outside], height, width, keys)
        result[outside] = again
        outside = outside[again >= size]
    return result


def _network(
    values: npt.NDArray[np.int64], height: int, width: int, keys: npt.NDArray[np.uint32]
) -> npt.NDArray[np.int64]:
    row = (values // width).astype(np.uint32)
    column = (values - row * np.int64(width)).astype(np.uint32)
    for key_row, key_column in zip(keys[::2], keys[1::2], strict=True):
        row = _turn(row, height, _mix(column ^ key_row))
        column = _turn(column, width, _mix(row ^ key_column))
    return row * np.int64(width) + column


def _turn(x: npt.NDArray[np.uint32], size: int, by: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """x + by (mod size), with `by` scaled into the range first; size is at most 2**16, so 32 bits are enough."""
    total = x + (((by >> np.uint32(16)) * np.uint32(size)) >> np.uint32(16))
    return np.minimum(total, total - np.uint32(size))  # below size, the subtraction wraps to something huge


def _mix(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """MurmurHash3's finaliser: every input bit changes every output bit about half the time."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
