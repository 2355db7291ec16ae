"""An endless stream of rows over one corpus: pass after pass, any row found at once.

All passes are laid end to end on one endless line of positions. What a position counts depends on the packing: tokens
for windows, rows for packed documents. A row belongs to the block that holds its last position, and the rows of a block
are served in a permuted order. Nothing here knows whether the tokens are in the cache already or are being made.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from headrace.data.cache.cache import Cache
from headrace.data.corpus.scale import current_scale
from headrace.data.order.blocks import SegmentIds, epoch_blocks
from headrace.data.order.epoch import Epoch
from headrace.data.order.permutation import make_key, permute
from headrace.data.order.rows import Block, Extent, RowBatch, Rows, TokenRanges, join_rows
from headrace.data.order.split import Split
from headrace.data.selection.reasons import dropped_counts
from headrace.errors import UsageError

KEPT_VIEWS = 3  # blocks whose rows are kept ready: neighbouring steps need the same ones
KEPT_PERMUTATIONS = 8  # runs of consecutive rows whose shuffled places are kept


class View(Protocol):
    """The rows of a block, ready to be read. A row is named by its place in the block before shuffling."""

    def gather(self, places: Rows) -> RowBatch:
        """Return the rows at these places."""

    def trace(self, place: int) -> list[Extent]:
        """Return where the tokens of the row at this place come from."""


class Packing(Protocol):
    """How tokens become rows."""

    sequence_length: int
    largest_block_bytes: int

    def measure(self, stream: Stream, segment: int) -> int:
        """Return how many positions a segment takes."""

    def last_position(self, row: int) -> int:
        """Return the position that completes a row."""

    def num_rows(self, position: int) -> int:
        """Return how many rows are complete before a position."""

    def view(self, stream: Stream, block: Block) -> View:
        """Return the rows of a block, ready to be read."""


class Stream:
    """Rows of one corpus (or of one source of a mixture) in their order."""

    def __init__(
        self,
        cache: Cache,
        segments: SegmentIds,
        split: Split,
        packing: Packing,
        seed: int,
        shuffle: bool,
        first_block_bytes: int,
        skipped: dict[int, list[tuple[int, int]]] | None = None,
    ) -> None:
        self.cache = cache
        self.split = split
        self.packing = packing
        self.skipped = skipped or {}
        """Documents to leave out: token ranges by segment."""
        self.segments = segments
        self._seed = seed
        self._shuffle = shuffle
        self._first_block_bytes = first_block_bytes
        self._epochs: OrderedDict[int, Epoch] = OrderedDict()
        self._views: OrderedDict[tuple[int, int], View] = OrderedDict()
        self._permutations: OrderedDict[tuple[int, int, int], Rows] = OrderedDict()
        self._permuted_rows = current_scale().permuted_rows
        self._lock = threading.RLock()

    def gather(self, rows: Rows) -> RowBatch:
        """Return the rows with these numbers, which must ascend."""
        parts: list[RowBatch] = []
        done = 0
        while done < len(rows):
            block = self.locate(int(rows[done]))
            count = int(np.searchsorted(rows[done:], block.stop_row))
            places = self._shuffled(block, rows[done : done + count])
            parts.append(self.view(block).gather(places))
            done += count
        return join_rows(parts)

    def trace(self, row: int) -> list[Extent]:
        """Return where the tokens of a row come from."""
        block = self.locate(row)
        place = int(self._shuffled(block, np.array([row]))[0])
        return self.view(block).trace(place)

    def locate(self, row: int) -> Block:
        """Return the block that a row belongs to."""
        with self._lock:
            return self._block_at(self.packing.last_position(row))

    def view(self, block: Block) -> View:
        """Return a view of a block's rows; the newest views are kept, because workers read neighbouring rows."""
        with self._lock:
            name = (block.epoch, block.number)
            view = self._views.get(name)
            if view is None:
                view = self._views[name] = self.packing.view(self, block)
                while len(self._views) > KEPT_VIEWS:
                    self._views.popitem(last=False)
            self._views.move_to_end(name)
            return view

    def token_ranges(self, start: int, stop: int) -> Iterator[TokenRanges]:
        """Yield the token ranges at the positions [start, stop) of the endless line, by segment (windows only)."""
        while start < stop:
            block = self._block_at(start)
            position = block.start
            for segment in block.segments.tolist():
                end = position + self.split.num_tokens(segment)
                if end > start and position < stop:
                    firsts, lasts = (bounds.astype(np.int64) for bounds in self.split.ranges(segment))
                    positions = position + np.cumsum(lasts - firsts) - (lasts - firsts)
                    shift = firsts - positions
                    low, high = np.maximum(start, positions), np.minimum(stop, positions + lasts - firsts)
                    kept = high > low
                    yield TokenRanges(segment, (low + shift)[kept], (high + shift)[kept], low[kept])
                position = end
            start = block.stop

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        """Yield the token ranges at the positions [start, stop) one at a time (windows only)."""
        for ranges in self.token_ranges(start, stop):
            for first, last, position in zip(ranges.starts, ranges.stops, ranges.positions, strict=True):
                yield Extent(ranges.segment, int(first), int(last), int(position))

    def epoch_size(self) -> int:
        """Count the positions of one pass; tokenises the whole corpus if that has not been done yet."""
        with self._lock:
            return self._epoch(0).size

    def count_rows(self, enough: int) -> int:
        """Count the rows of the first pass, but no further than `enough`: what lies beyond need not be tokenised."""
        with self._lock:
            epoch = self._epoch(0)
            if epoch.find(self.packing.last_position(enough - 1)) is not None:
                return enough
            return self.packing.num_rows(epoch.size)

    def build_order(self) -> Iterator[SegmentIds]:
        """Yield the blocks of the first pass in the order in which they will be needed."""
        yield from self._epoch(0).blocks

    def set_skipped(self, skipped: dict[int, list[tuple[int, int]]]) -> None:
        """Leave out other documents from now on; the order of everything else stays as it is."""
        with self._lock:
            self.skipped = skipped
            self._views.clear()

    def _shuffled(self, block: Block, rows: Rows) -> Rows:
        """Return the places that rows have in the block before shuffling."""
        places = rows - block.first_row
        if not self._shuffle:
            return places
        first, last = int(places[0]) // self._permuted_rows, int(places[-1]) // self._permuted_rows
        parts = [self._permutation(block, number) for number in range(first, last + 1)]
        shuffled = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return shuffled[places - first * self._permuted_rows]

    def _permutation(self, block: Block, number: int) -> Rows:
        """Return the places of one run of thousands of consecutive rows.

        The newest runs are kept, because rows are read in sequence.
        """
        name = (block.epoch, block.number, number)
        with self._lock:
            places = self._permutations.get(name)
            if places is None:
                size = block.stop_row - block.first_row
                asked = np.arange(number * self._permuted_rows, min((number + 1) * self._permuted_rows, size))
                places = permute(asked, size, make_key("rows", self._seed, block.epoch, block.number))
                self._permutations[name] = places
                while len(self._permutations) > KEPT_PERMUTATIONS:
                    self._permutations.popitem(last=False)
            return places

    def _block_at(self, position: int) -> Block:
        """Return the block that holds a position of the endless line.

        The first pass is searched first, so that its later blocks need not be tokenised yet.
        """
        with self._lock:
            epoch = self._epoch(0)
            number, before = 0, 0
            found = epoch.find(position)
            if found is None:
                size = epoch.size
                self._refuse_short(size)
                number, rest = divmod(position, size)
                before = number * size
                epoch = self._epoch(number)
                found = epoch.find(rest)
                assert found is not None
            block, start, stop = found
            start, stop = before + start, before + stop
            rows = (self.packing.num_rows(start), self.packing.num_rows(stop))
            return Block(number, block, epoch.blocks[block], start, stop, *rows)

    def _refuse_short(self, size: int) -> None:
        if self.packing.num_rows(size) == 0:
            left_out = self._left_out()
            select = ", select other documents" if left_out else ""
            raise UsageError(
                f"the sequence length {self.packing.sequence_length} is too long for this part of {self._title()}"
                f" ({size:,} tokens{left_out}). Choose a smaller training.max_length (sequence_length of a loader),"
                f" another validation fraction{select}, or give more text."
            )

    def _title(self) -> str:
        """Return what messages call this text: a source of a mixture, or the corpus."""
        owners = {self.cache.segments[segment].source for segment in self.segments.tolist()}
        if len(owners) != 1 or len(self.cache.sources) == 1:
            return "the corpus"
        return f"the source {self.cache.sources[owners.pop()].label!r}"

    def _left_out(self) -> str:
        """Return, for messages, how many documents were left out of this text and why; "" if none were."""
        noticed: Counter[str] = Counter()
        for segment in self.segments.tolist():
            noticed += self.cache.entry(segment).noticed
        counts = [f"{count['documents']:,} as {reason}" for reason, count in dropped_counts(noticed).items()]
        return f"; documents left out: {', '.join(counts)}" if counts else ""

    def _measure(self, segments: list[int]) -> int:
        self.cache.require(segments)
        return sum(self.packing.measure(self, segment) for segment in segments)

    def _epoch(self, number: int) -> Epoch:
        epoch = self._epochs.get(number)
        if epoch is None:
            blocks = epoch_blocks(
                self.cache.segments,
                self.segments,
                self._seed,
                number,
                self._shuffle,
                self._first_block_bytes,
                self.packing.largest_block_bytes,
            )
            epoch = self._epochs[number] = Epoch(blocks, self._measure)
            for old in list(self._epochs)[1:-2]:  # the first is always needed for its size
                del self._epochs[old]
        return epoch
