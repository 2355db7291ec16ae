"""Which documents repeat earlier ones: a pure function of the documents' keys and of the order of the corpus.

A document is a duplicate if an earlier one has an equal key. Keys are sorted by ranges of their values, so that memory
is bounded however many documents there are; the marks lie in a mapped file. docs/design/deduplication.md explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.data.selection.hashing import Hashes, mix
from headrace.data.selection.reasons import DUPLICATE, KEPT, NEAR_DUPLICATE
from headrace.data.selection.records import DocumentRecord

Marks = npt.NDArray[np.uint8]
MOST_KEYS = 4 << 20
"""Keys that are sorted at a time: about 150 MiB with all that sorting takes."""


@dataclass(frozen=True)
class _Heads:
    """Documents that lie across segments: where each begins, its whole key, and which pieces follow it."""

    keys: dict[int, int]
    followers: dict[int, int]
    """The place of each further piece, with the place of its beginning."""


def mark_duplicates(
    read: Callable[[int], DocumentRecord], sizes: Sequence[int], marks: Marks, num_keys: int, most_keys: int = MOST_KEYS
) -> None:
    """Fill `marks` with the reason for each document of all segments: a filter's, a duplicate, or none.

    `read` returns the record of a segment, `sizes` are the numbers of their documents.
    """
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])
    heads = _find_heads(read, starts, marks)
    for number in range(num_keys):
        reason = NEAR_DUPLICATE if number else DUPLICATE
        num_ranges = max(1, -(-int(starts[-1]) // most_keys))
        for chosen in range(num_ranges):
            keys, places = _gather(read, starts, marks, heads, number, chosen, num_ranges)
            repeated = _later_equals(keys, places)
            repeated = repeated[marks[repeated] == KEPT]
            marks[repeated] = reason
    for follower, head in heads.followers.items():
        if marks[follower] == KEPT:
            marks[follower] = marks[head]


def _find_heads(read: Callable[[int], DocumentRecord], starts: npt.NDArray[np.int64], marks: Marks) -> _Heads:
    """Copy what filters say into the marks, and join the pieces of documents that lie across files or segments."""
    keys: dict[int, int] = {}
    followers: dict[int, int] = {}
    head: int | None = None
    for segment in range(len(starts) - 1):
        record, start = read(segment), int(starts[segment])
        marks[start : starts[segment + 1]] = record.reasons
        is_open, continues = record.is_open, record.is_continuation
        for place in np.flatnonzero(is_open | continues).tolist():
            key = int(record.keys[0, place])
            if not continues[place] or head is None:
                head = start + place
                keys[head] = key
            else:
                followers[start + place] = head
                joined = np.array([keys[head]], np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
                keys[head] = int(mix(joined)[0])
            if not is_open[place]:
                head = None
    return _Heads(keys, followers)


def _gather(
    read: Callable[[int], DocumentRecord],
    starts: npt.NDArray[np.int64],
    marks: Marks,
    heads: _Heads,
    number: int,
    chosen: int,
    num_ranges: int,
) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Return the keys in one of several ranges of values, with the places of their documents, in order."""
    found_keys: list[Hashes] = []
    found_places: list[npt.NDArray[np.int64]] = []
    for segment in range(len(starts) - 1):
        record, start = read(segment), int(starts[segment])
        keys = record.keys[number].copy()
        is_piece = record.is_open | record.is_continuation
        is_taken = record.reasons == KEPT
        if number:  # only whole documents are compared by their shingles, and only those with some
            is_taken &= ~is_piece & (keys != 0)
        else:
            for place in np.flatnonzero(is_piece).tolist():
                keys[place] = heads.keys.get(start + place, 0)
                is_taken[place] &= start + place in heads.keys
        if num_ranges > 1:
            is_taken &= _range_of(keys, num_ranges) == chosen
        found_keys.append(keys[is_taken])
        found_places.append(np.flatnonzero(is_taken) + start)
    return np.concatenate(found_keys), np.concatenate(found_places)


def _range_of(keys: Hashes, num_ranges: int) -> Hashes:
    """Return the range of values that each key is in."""
    return (keys >> np.uint64(32)) * np.uint64(num_ranges) >> np.uint64(32)


def _later_equals(keys: Hashes, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the places of all keys that an earlier place has too."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    is_repeated = np.concatenate([np.zeros(1, bool), ordered[1:] == ordered[:-1]])[: len(ordered)]
    repeated: npt.NDArray[np.int64] = places[order[is_repeated]]
    return repeated


def count_duplicates(read: Callable[[int], DocumentRecord], sizes: Sequence[int], marks: Marks) -> tuple[int, int]:
    """Return how many documents repeat an earlier one exactly, and how many bytes they have."""
    mark_duplicates(read, sizes, marks, 1)
    documents = num_bytes = 0
    for segment, (start, stop) in enumerate(_bounds(sizes)):
        is_repeated = marks[start:stop] == DUPLICATE
        if is_repeated.any():
            record = read(segment)
            documents += int((is_repeated & ~record.is_open).sum())
            num_bytes += int(record.lengths[is_repeated].sum())
    return documents, num_bytes


def _bounds(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    stop = 0
    for size in sizes:
        stop += size
        yield stop - size, stop
