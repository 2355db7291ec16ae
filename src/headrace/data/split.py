"""Training and validation parts of a corpus, told apart without leakage and without knowing the whole corpus.

Where there are many documents, validation takes whole documents from the end of every segment. Where there is one text
(or a few), it takes the tail of the text. Either way a segment is cut in at most one place: training before it,
validation after it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

import numpy as np

from headrace.data.cache import Cache
from headrace.errors import UsageError
from headrace.files import digest

Part = Literal["all", "train", "validation"]
FEW_FILES = 20


class Split:
    """The part of each segment that belongs to training or validation, for a fraction kept for validation."""

    def __init__(self, cache: Cache, part: Part, fraction: float) -> None:
        if not 0 <= fraction < 1:
            raise UsageError(f"validation fraction {fraction} is not between 0 and 1")
        if part == "validation" and fraction == 0:
            raise UsageError("the validation part is asked for, but the validation fraction is 0")
        self._cache = cache
        self._part = part
        self._fraction = fraction if part != "all" else 0.0
        self._by_documents = [self._has_many_documents(source) for source in range(len(cache.sources))]
        self._kept = self._bytes_before_tail()
        self._cuts: dict[int, int] = {}
        self._lock = threading.Lock()

    def is_used(self, segment: int) -> bool:
        """Whether a segment can hold anything of this part, told without tokenising it."""
        if self._fraction == 0 or self._by_documents[self._cache.segments[segment].source]:
            return True
        kept = self._kept[segment]
        return kept > 0 if self._part == "train" else kept < 1

    def range(self, segment: int) -> tuple[int, int]:
        """The tokens [start, stop) of a segment that belong to this part."""
        total = self._cache.entry(segment).num_tokens
        if self._fraction == 0:
            return 0, total
        with self._lock:
            cut = self._cuts.get(segment)
            if cut is None:
                source = self._cache.segments[segment].source
                by_documents = self._by_documents[source]
                cut = self._document_cut(segment, total) if by_documents else round(self._kept[segment] * total)
                self._cuts[segment] = cut
        return (0, cut) if self._part == "train" else (cut, total)

    def _has_many_documents(self, source: int) -> bool:
        segments = [segment for segment in self._cache.segments if segment.source == source]
        if self._cache.sources[source].document != "file":
            return True
        if any(segment.kind == "rows" or ".jsonl" in segment.path or ".ndjson" in segment.path for segment in segments):
            return True
        return sum(segment.num_files for segment in segments if segment.ordinal == 0) >= FEW_FILES

    def _bytes_before_tail(self) -> Sequence[float]:
        """Of each segment, the share that stands before the tail of its source."""
        segments = self._cache.segments
        sizes = np.array([segment.nbytes for segment in segments], dtype=np.float64)
        kept = np.ones(len(segments))
        for source in range(len(self._cache.sources)):
            chosen = np.flatnonzero([segment.source == source for segment in segments])
            before = np.concatenate([[0.0], np.cumsum(sizes[chosen])])
            tail = before[-1] * (1 - self._fraction)
            kept[chosen] = np.clip((tail - before[:-1]) / np.maximum(sizes[chosen], 1), 0, 1)
        return kept.tolist()

    def _document_cut(self, segment: int, total: int) -> int:
        """A document end near the wanted share; which side of it is drawn so that shares are right on average."""
        ends = self._cache.document_ends(segment)
        if len(ends) == 0 or ends[-1] != total:
            return total  # its last document goes on elsewhere: leave it to training
        first = 0 if self._cache.segments[segment].ordinal == 0 else 1  # the first may be the rest of another
        cuts = np.concatenate([[0], ends])[first:]
        target = total * (1 - self._fraction)
        above = int(np.searchsorted(cuts, target))
        high = int(cuts[min(above, len(cuts) - 1)])
        low = int(cuts[max(above - 1, 0)])
        if len(self._cache.segments) == 1:  # the whole corpus: neither part may be empty
            if len(ends) == 1:
                return round(target)
            return low if low > 0 else high
        if low >= high:
            return high
        chance = int(digest("split", str(segment))[:8], 16) / 2**32
        return low if chance < (high - target) / (high - low) else high
