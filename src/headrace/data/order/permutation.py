"""A keyed permutation of any range, computed element by element: shuffling without an index array."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

_ROUNDS = 6  # four make a Feistel network a strong permutation (Luby, Rackoff); small ranges need a few more
# On a rectangle of a few rows and columns a network reaches some permutations more often than others, however many
# rounds it has. Ranges up to this size are sorted by a hash instead.
SORTED_SIZE = 256


def make_key(*parts: int | str) -> bytes:
    """Return a key from whatever the permutation may depend on.

    >>> make_key("windows", 0, 1) != make_key("windows", 1, 0)
    True
    """
    return hashlib.blake2b(repr(parts).encode(), digest_size=4 * _ROUNDS).digest()


def permute(values: npt.NDArray[np.int64], size: int, key: bytes) -> npt.NDArray[np.int64]:
    """Send each of `values` in [0, size) to its place in a permutation of [0, size) that the key determines.

    A Feistel network permutes a rectangle of about the square root of the size each way; the few values that land
    beyond the range go round again, which keeps it a permutation of the range. Memory and time depend on how many
    values are asked for, not on the size. A small range is put into the order of its hashes.
    """
    assert 0 < size <= 1 << 32
    keys = np.frombuffer(key, dtype="<u4")
    if size <= SORTED_SIZE:
        return np.argsort(_hashes(size, keys), kind="stable")[values]
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
    """Permute the places of a rectangle, numbered row by row, with a Feistel network."""
    row = (values // width).astype(np.uint32)
    column = (values - row * np.int64(width)).astype(np.uint32)
    for key_row, key_column in zip(keys[::2], keys[1::2], strict=True):
        row = _turn(row, height, mix(column ^ key_row))
        column = _turn(column, width, mix(row ^ key_column))
    return row * np.int64(width) + column


def _hashes(size: int, keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Return 64 bits for each number of a range, drawn by the key."""
    numbers = np.arange(size, dtype=np.uint32)
    high, low = mix(mix(numbers ^ keys[0]) ^ keys[1]), mix(mix(numbers ^ keys[2]) ^ keys[3])
    return (high.astype(np.uint64) << np.uint64(32)) | low


def _turn(x: npt.NDArray[np.uint32], size: int, by: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return x + by (mod size), with `by` first scaled into the range; size is at most 2**16, so 32 bits suffice."""
    total = x + (((by >> np.uint32(16)) * np.uint32(size)) >> np.uint32(16))
    return np.minimum(total, total - np.uint32(size))  # below size, the subtraction wraps to something huge


def mix(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Scramble 32 bits with MurmurHash3's finaliser: every input bit changes every output bit about half the time."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
