"""Training and validation parts of a corpus, chosen by the documents' own content.

A document's side is drawn from its tokens alone: equal documents are always on the same side, nothing must be known of
the rest of the corpus, and the first batch need not wait. Documents that are large compared with the corpus would make
the share a matter of luck, so only the tail of such a document goes to validation; see docs/design/order.md.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.data.cache.cache import Cache
from headrace.data.corpus.scale import current_scale
from headrace.data.order.permutation import mix
from headrace.errors import UsageError

Part = Literal["all", "train", "validation"]
Ints = npt.NDArray[np.int32]
Ranges = tuple[Ints, Ints]

# One document gives at most 1/64 of what validation should hold (a grain), unless its fraction is more than that. With
# at least 64 draws, the resulting share is within an eighth of the requested one, two times in three.
GRAINS = 64
KEPT_BYTES = 16 << 20


class Split:
    """The part of each segment that belongs to training or validation, for a fraction kept for validation.

    A document that is continued in another segment counts as one document in each.
    """

    def __init__(self, cache: Cache, part: Part, fraction: float) -> None:
        if not 0 <= fraction < 1:
            raise UsageError(f"validation fraction {fraction} is not between 0 and 1")
        if part == "validation" and fraction == 0:
            raise UsageError("split='validation' needs a validation_fraction above 0")
        self._cache = cache
        self._part = part
        self._fraction = fraction if part != "all" else 0.0
        source_bytes = [0] * len(cache.sources)
        for segment in cache.segments:
            source_bytes[segment.source] += segment.nbytes
        # Bytes stand for tokens here: how many tokens there are is known only at the end.
        self._grains = [max(1, round(self._fraction * nbytes / GRAINS)) for nbytes in source_bytes]
        self._num_tokens: dict[int, int] = {}
        self._ranges: OrderedDict[int, Ranges] = OrderedDict()
        self._lock = threading.RLock()

    def num_tokens(self, segment: int) -> int:
        """Return how many tokens of a segment belong to this part."""
        if self._fraction == 0:
            return self._cache.entry(segment).num_tokens
        with self._lock:
            if segment not in self._num_tokens:
                self.ranges(segment)
            return self._num_tokens[segment]

    def ranges(self, segment: int) -> Ranges:
        """Return the token ranges [start, stop) of a segment that belong to this part; neighbours are joined."""
        if self._fraction == 0:
            return np.zeros(1, np.int32), np.array([self._cache.entry(segment).num_tokens], np.int32)
        with self._lock:
            found = self._ranges.get(segment)
            if found is None:
                found = self._ranges[segment] = _joined(*self.documents(segment))
                self._num_tokens[segment] = int((found[1] - found[0]).sum(dtype=np.int64))
                self._forget()
            self._ranges.move_to_end(segment)
            return found

    def documents(self, segment: int) -> Ranges:
        """Return the token ranges that documents of a segment have in this part, leaving out documents with none."""
        bounds = document_bounds(self._cache, segment)
        starts, stops = bounds[:-1], bounds[1:]
        if self._fraction == 0:
            return starts, stops
        cuts = stops - self._held_out(segment, bounds)
        if self._part == "train":
            kept = cuts > starts
            return starts[kept], cuts[kept]
        kept = stops > cuts
        return cuts[kept], stops[kept]

    def _held_out(self, segment: int, bounds: Ints) -> Ints:
        """Return how many tokens at the end of each document belong to validation.

        On average this is the validation fraction of the document's tokens. A document smaller than a grain is held out
        as a whole or not at all. A larger one gives its last grain of tokens, with a probability that grows with its
        size. Once the fraction of a document's tokens is a grain or more, exactly that fraction is held out.
        """
        grain = self._grains[self._cache.segments[segment].source]
        held = np.zeros(len(bounds) - 1, dtype=np.int32)
        drawn: npt.NDArray[np.uint32] | None = None
        step = current_scale().drawn_documents
        for first in range(0, len(held), step):  # a segment may hold millions of tiny documents
            here = slice(first, first + step)
            sizes = np.diff(bounds[first : first + step + 1])
            share = self._fraction * sizes
            held[here] = np.rint(share)
            is_drawn = share < grain
            if is_drawn.any():
                if drawn is None:
                    drawn = _content_hashes(self._cache, segment, bounds)
                largest = np.minimum(sizes, grain)
                is_held = drawn[here] < share / np.maximum(largest, 1) * 2**32
                held[here] = np.where(is_drawn, np.where(is_held, largest, 0), held[here])
        return held

    def _forget(self) -> None:
        """Drop the ranges that were used longest ago, until the others fit in KEPT_BYTES."""
        held = sum(starts.nbytes + stops.nbytes for starts, stops in self._ranges.values())
        while held > KEPT_BYTES and len(self._ranges) > 1:
            _, (starts, stops) = self._ranges.popitem(last=False)
            held -= starts.nbytes + stops.nbytes


def document_bounds(cache: Cache, segment: int) -> Ints:
    """Return where the documents of a segment begin, and where the last one ends or leaves the segment."""
    ends, total = cache.document_ends(segment), cache.entry(segment).num_tokens
    assert total < 1 << 31
    bounds = np.concatenate([np.zeros(1, np.int32), ends.astype(np.int32), np.full(1, total, np.int32)])
    is_new = bounds[1:] > bounds[:-1]
    return bounds if is_new.all() else bounds[np.append(True, is_new)]


def _joined(starts: Ints, stops: Ints) -> Ranges:
    """Make one range of those that touch.

    >>> [array.tolist() for array in _joined(np.array([0, 3, 9]), np.array([3, 5, 11]))]
    [[0, 9], [5, 11]]
    """
    if len(starts) == 0:
        return starts, stops
    is_apart = starts[1:] != stops[:-1]
    return starts[np.append(True, is_apart)], stops[np.append(is_apart, True)]


def _content_hashes(cache: Cache, segment: int, bounds: Ints) -> npt.NDArray[np.uint32]:
    """Return 32 bits for each document that depend on its tokens and their order, and on nothing else.

    Each token is mixed with the one before it in the document, and the results are added up.
    """
    sums = np.zeros(len(bounds) - 1, dtype=np.uint32)
    offset, before, step = 0, 0, current_scale().hashed_tokens
    for array in cache.tokens(segment, 0, cache.entry(segment).num_tokens):
        for start in range(0, len(array), step):
            tokens = array[start : start + step].astype(np.uint32)
            first = int(np.searchsorted(bounds, offset, side="right")) - 1
            last = int(np.searchsorted(bounds, offset + len(tokens), side="left"))
            begins = bounds[first:last] - offset  # of the documents in this slice; the first may have begun before it
            previous = np.empty_like(tokens)
            previous[0], previous[1:] = before, tokens[:-1]
            previous[begins[begins >= 0]] = 0
            before = int(tokens[-1])
            values = mix(tokens + np.uint32(1) + previous * np.uint32(0x9E3779B1))
            sums[first:last] += np.add.reduceat(values, np.maximum(begins, 0), dtype=np.uint32)
            offset += len(tokens)
    return mix(sums ^ mix(np.diff(bounds).astype(np.uint32)))
