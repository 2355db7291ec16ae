"""Near duplicates by MinHash: documents that share most of their shingles get equal keys in some band.

A shingle is five words in a row, lower case, without punctuation. How alike two documents are is the share of shingles
that both have, among those that either has (Jaccard). Each document keeps, of the hashes of all its shingles, the
smallest in each of 256 bins (one permutation hashing; an empty bin borrows from its nearest neighbour). Two documents
 agree in a bin with a chance equal to their likeness. Bins are grouped into bands: agreement in all bins of a
band makes the band's key equal. docs/design/deduplication.md has the reasons and the costs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from headrace.data.selection.hashing import Hashes, mix

NUM_BINS = 256
SHINGLE_WORDS = 5
FOUND_AT_THRESHOLD = 0.75
"""The least chance of being found for a pair that is exactly as alike as the threshold."""
_SLAB_BYTES = 256 << 10
_EMPTY = np.uint64(2**64 - 1)
_BIN_SHIFT = np.uint64(64 - 8)
_BASE = np.uint64(0x5851F42D4C957F2D)  # odd, so that it can be divided by, modulo 2^64
_WORD_FACTORS = [np.uint64((2 * number + 1) * 0x2545F4914F6CDD1D % 2**64) for number in range(SHINGLE_WORDS)]


def bands_for(threshold: float) -> tuple[int, int]:
    """Return how many bands of how many bins: the sharpest division that still finds pairs at the threshold.

    >>> bands_for(0.8)
    (21, 12)
    """
    fitting = [
        (NUM_BINS // rows, rows)
        for rows in range(1, NUM_BINS + 1)
        if chance_of_finding(threshold, NUM_BINS // rows, rows) >= FOUND_AT_THRESHOLD
    ]
    return fitting[-1]


def chance_of_finding(likeness: float, num_bands: int, num_rows: int) -> float:
    """Return the chance that two documents as alike as this have an equal key in some band."""
    return float(1 - (1 - likeness**num_rows) ** num_bands)


def band_keys(documents: Sequence[bytes], threshold: float) -> Hashes:
    """Return the keys of documents, as (bands, documents); 0 for documents of fewer than five words."""
    num_bands, num_rows = bands_for(threshold)
    keys = np.zeros((num_bands, len(documents)), np.uint64)
    for first, slab in _slabs(documents):
        smallest = np.full((len(slab), NUM_BINS), _EMPTY, np.uint64)
        for owners, pieces in _pieces(slab):
            _take_smallest(smallest, owners, pieces)
        has_shingles = (smallest != _EMPTY).any(axis=1)
        _fill_empty(smallest, has_shingles)
        salted = smallest[:, : num_bands * num_rows] + _salts(num_bands * num_rows)
        # The bins of a band lie far apart: neighbours may have borrowed from the same bin.
        sums = mix(salted).reshape(len(slab), num_rows, num_bands).sum(axis=1, dtype=np.uint64)
        sums = np.where(has_shingles[:, None], mix(sums) | np.uint64(1), np.uint64(0))
        keys[:, first : first + len(slab)] = sums.T
    return keys


def _slabs(documents: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Yield runs of documents of about a quarter of a MiB; a larger document alone."""
    first = size = 0
    for stop, document in enumerate(documents, start=1):
        size += len(document) + 64  # what a document takes beside its text
        if size >= _SLAB_BYTES or stop == len(documents):
            yield first, documents[first:stop]
            first, size = stop, 0


def _pieces(documents: Sequence[bytes]) -> Iterator[tuple[list[int], list[bytes]]]:
    """Yield lists of pieces with their owners: no list is larger than two slabs, however large a document is."""
    owners: list[int] = []
    pieces: list[bytes] = []
    size = 0
    for owner, document in enumerate(documents):
        for start in range(0, len(document), _SLAB_BYTES):
            if size >= _SLAB_BYTES:
                yield owners, pieces
                owners, pieces, size = [], [], 0
            pieces.append(document[start : start + _SLAB_BYTES])
            owners.append(owner)
            size += len(pieces[-1])
    if pieces:
        yield owners, pieces


def _take_smallest(smallest: Hashes, owners: list[int], pieces: list[bytes]) -> None:
    """Lower the bins of documents to the smallest hashes of the shingles in some pieces of them."""
    raw = np.frombuffer(b" ".join([*pieces, b""]), np.uint8)
    starts, words = _words(raw)
    if len(words) < SHINGLE_WORDS:
        return
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces)) + 1
    piece = np.searchsorted(np.cumsum(lengths), starts, side="right")
    count = len(words) - SHINGLE_WORDS + 1
    shingles = np.zeros(count, np.uint64)
    for number, factor in enumerate(_WORD_FACTORS):
        shingles += words[number : number + count] * factor
    is_whole = piece[:count] == piece[SHINGLE_WORDS - 1 :]
    hashes = mix(shingles)[is_whole]
    owner = np.asarray(owners, np.int64)[piece[:count][is_whole]]
    places = owner * NUM_BINS + (hashes >> _BIN_SHIFT).astype(np.int64)
    np.minimum.at(smallest.reshape(-1), places, hashes)


def _words(raw: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], Hashes]:
    """Return where words begin, and their hashes; the text ends with a space.

    The hash of a word is the value of its bytes as digits of a number, modulo 2^64: a difference of running sums.
    """
    kinds = _byte_kinds()[raw]
    is_word = kinds > 0
    follows_word = np.empty_like(is_word)
    follows_word[0], follows_word[1:] = False, is_word[:-1]
    begins = is_word & (~follows_word | (kinds == 2))
    ends = follows_word & (~is_word | begins)
    starts, stops = np.flatnonzero(begins), np.flatnonzero(ends)
    powers, inverses = _powers()
    sums = np.zeros(len(raw) + 1, np.uint64)
    np.cumsum(_lower_case()[raw] * powers[: len(raw)], out=sums[1:])
    values = (sums[stops] - sums[starts]) * inverses[starts]
    return starts, mix(values + (stops - starts).astype(np.uint64))


def _fill_empty(smallest: Hashes, has_shingles: npt.NDArray[np.bool_]) -> None:
    """Let every empty bin borrow from the nearest full one on its left or right; which side is fixed for each bin.

    The distance becomes part of what is borrowed, or neighbours that are empty would all agree at once.
    """
    is_partly_empty = has_shingles & (smallest == _EMPTY).any(axis=1)
    sparse = smallest[is_partly_empty]
    if not len(sparse):
        return
    is_full = sparse != _EMPTY
    here = np.arange(NUM_BINS, dtype=np.int16)
    left = np.maximum.accumulate(np.where(is_full, here, np.int16(-1)), axis=1)
    left = np.where(left < 0, left[:, -1:], left)  # bins lie in a circle
    right = np.minimum.accumulate(np.where(is_full, here, np.int16(NUM_BINS))[:, ::-1], axis=1)[:, ::-1]
    right = np.where(right == NUM_BINS, right[:, :1], right)
    lender = np.where(_borrows_left(), left, right)
    distance = ((lender - here) % NUM_BINS).astype(np.uint64)
    smallest[is_partly_empty] = np.take_along_axis(sparse, lender.astype(np.intp), axis=1) + distance * _BASE


@functools.cache
def _borrows_left() -> npt.NDArray[np.bool_]:
    return (mix(np.arange(1, NUM_BINS + 1, dtype=np.uint64)) >> np.uint64(63)).astype(bool)


@functools.cache
def _salts(count: int) -> Hashes:
    return mix(np.arange(1, count + 1, dtype=np.uint64) * _BASE)


@functools.cache
def _powers() -> tuple[Hashes, Hashes]:
    """Return the powers of the base and of its inverse, for every place of a list of pieces."""
    length = 4 * _SLAB_BYTES
    inverse = np.uint64(pow(int(_BASE), -1, 2**64))
    powers = [np.full(length, factor, np.uint64) for factor in (_BASE, inverse)]
    for values in powers:
        values[0] = 1
        np.cumprod(values, out=values)
    return powers[0], powers[1]


@functools.cache
def _lower_case() -> Hashes:
    return np.array([number + 32 if 65 <= number <= 90 else number for number in range(256)], np.uint64)


@functools.cache
def _byte_kinds() -> npt.NDArray[np.uint8]:
    """Return the kind of each byte: 0 between words, 1 in a word, 2 the beginning of a character that is a word itself.

    Letters beyond ASCII belong to words. Characters from U+2000 on are words of their own: Chinese, Japanese and Korean
    have no spaces between words.
    """
    kinds = np.zeros(256, np.uint8)
    for number in range(256):
        is_letter = number >= 128 or chr(number).isalnum()
        kinds[number] = 2 if number >= 0xE2 else int(is_letter)
    return kinds
