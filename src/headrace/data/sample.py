"""Rows to evaluate on: the same every time, from all over a part of a corpus, each source in its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.data.batch import Batch, as_batch
from headrace.data.cache.cache import Cache
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import unique_names
from headrace.data.order.blocks import SegmentIds
from headrace.data.order.packing import DocumentPacking
from headrace.data.order.split import Split
from headrace.data.order.stream import Stream
from headrace.data.order.windows import WindowPacking

SEED = 0  # not the seed of the run, so that all runs are compared on the same rows
# Sources without weights are sampled separately up to this number; with more, each would have too few rows.
MOST_SOURCES = 64
FEW_ROWS = 8
ALL_ROWS = 1 << 62


@dataclass(frozen=True)
class Sample:
    """Rows of one source."""

    source: str
    weight: float | None
    """Its share of the mixture; None: it counts by its tokens."""
    batch: Batch | None
    """None: the source has nothing in this part."""


def segments_by_source(cache: Cache) -> list[SegmentIds]:
    """Return the numbers of the segments of each source."""
    owners = np.array([segment.source for segment in cache.segments])
    return [np.flatnonzero(owners == source) for source in range(len(cache.sources))]


@dataclass(frozen=True)
class Sampler:
    """Draws rows from one pass over a part of a corpus.

    They are the first rows of a shuffled pass over each source, so that a corpus that is still being tokenised need not
    be waited for: the first block of a pass is a choice of segments, and of a small corpus all of them.
    """

    cache: Cache
    split: Split
    packing: type[WindowPacking] | type[DocumentPacking]
    sequence_length: int
    weights: Sequence[float] | None
    """Shares by which losses on the sources are averaged; None: all text is one corpus."""
    row_weights: Sequence[float] | None
    """Shares of the sources in a sample."""

    def draw(self, max_tokens: int) -> list[Sample]:
        """Draw about `max_tokens` tokens (0: all there are), every row at most once."""
        segments = self.cache.segments
        is_apart = bool(self.weights) or 1 < len(self.cache.sources) <= MOST_SOURCES
        groups = segments_by_source(self.cache) if is_apart else [np.arange(len(segments))]
        sizes = self.row_weights or [sum(segments[index].nbytes for index in group.tolist()) for group in groups]
        names = unique_names(self.cache.sources)
        samples = []
        for number, (group, size) in enumerate(zip(groups, sizes, strict=True)):
            share = size / sum(sizes)
            wanted = max(1, round(share * max_tokens / self.sequence_length)) if max_tokens else ALL_ROWS
            batch = self._rows(group, wanted, current_scale().first_block_bytes // len(groups))
            weight = self.weights[number] / sum(self.weights) if self.weights else None
            samples.append(Sample(names[number], weight, batch))
        return samples

    def _rows(self, group: SegmentIds, wanted: int, first_block_bytes: int) -> Batch | None:
        length = self.sequence_length
        stream = Stream(self.cache, group, self.split, self.packing(length), SEED, True, first_block_bytes)
        count = stream.count_rows(wanted)
        if count < min(wanted, FEW_ROWS) and self.packing is WindowPacking:
            # With so little text, no token should be left over: slightly shorter windows use them all.
            num_targets = stream.epoch_size() - 1
            count = -(-num_targets // length)
            length = num_targets // max(count, 1)
            stream = Stream(self.cache, group, self.split, WindowPacking(length), SEED, True, first_block_bytes)
        if count <= 0:
            return None
        return as_batch(0, stream.gather(np.arange(count)), length)
