"""Windows of T+1 tokens over the endless stream: no padding, nothing discarded, one gather per batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from headrace.data.stream import Block, Extent, RowBatch, Rows, Stream


class WindowPacking:
    """Window k reads the tokens [kT, kT + T] of the stream: T inputs, and the same moved on by one as targets.

    Every token is an input once a pass. What is left at the end of a block or a pass is carried into the next.
    """

    largest_block_bytes = 256 << 20

    def __init__(self, sequence_length: int) -> None:
        self.sequence_length = sequence_length

    def measure(self, stream: Stream, segment: int) -> int:
        start, stop = stream.split.range(segment)
        return stop - start

    def last_position(self, row: int) -> int:
        return (row + 1) * self.sequence_length

    def num_rows(self, position: int) -> int:
        return max(position - 1, 0) // self.sequence_length

    def view(self, stream: Stream, block: Block) -> WindowView:
        return WindowView(stream, block, self.sequence_length)


class WindowView:
    """The windows of a block.

    Windows that lie within one mapped shard are read where they are; the few that cross from one shard into another
    are copied into `_seams` first. Both kinds are found through `_run_rows` and `_run_places`: window k of run r begins
    at element `_run_places[r] + (k - _run_rows[r]) * T`.

    Elements are counted from the lowest address in use: all mappings lie in one address space, so a single strided view
    reaches every window, and a batch is one NumPy gather instead of one per shard (2.3 times as fast; see
    docs/design/serving.md). The view spans memory that is not ours, hence the assertion in `gather`.
    """

    def __init__(self, stream: Stream, block: Block, sequence_length: int) -> None:
        self._stream = stream
        self._first_row = block.first_row
        self._length = sequence_length
        start, stop = block.first_row * sequence_length, block.stop_row * sequence_length + 1
        self._extents = list(stream.extents(start, stop))
        self._find_skipped()
        self._lay_out(block)

    def gather(self, places: Rows) -> RowBatch:
        rows = places + self._first_row
        runs = np.searchsorted(self._run_rows, rows, side="right") - 1
        within = rows - self._run_rows[runs]
        assert (within < self._run_lengths[runs]).all(), "a window outside its mapping"
        tokens = self._reach[self._run_places[runs] + within * self._length]
        if not self._stream.skipped:
            return RowBatch(tokens)
        return self._without_skipped(tokens, rows)

    def trace(self, place: int) -> list[Extent]:
        start = (self._first_row + place) * self._length
        return list(self._stream.extents(start, start + self._length + 1))

    def _lay_out(self, block: Block) -> None:
        length, cache = self._length, self._stream.cache
        self._held: list[npt.NDArray[Any]] = []  # keeps the mappings alive while their addresses are in use
        runs: list[tuple[int, int, int]] = []  # first window, how many, address
        seam_rows: list[int] = []
        next_row = block.first_row
        for position, tokens in self._mapped():
            first = -(-position // length)
            count = (position + len(tokens) - 1) // length - first
            if count > 0:
                seam_rows += range(next_row, first)
                runs.append((first, count, tokens.ctypes.data + (first * length - position) * tokens.itemsize))
                self._held.append(tokens)
                next_row = first + count
        seam_rows += range(next_row, block.stop_row)
        self._seams = np.empty((len(seam_rows), length + 1), dtype=cache.dtype)
        for seam, row in zip(self._seams, seam_rows, strict=True):
            self._copy_window(row, seam)
            runs.append((row, 1, seam.ctypes.data))
        runs.sort()
        self._run_rows, self._run_lengths, addresses = (
            np.array(column, dtype=np.int64) for column in zip(*runs, strict=True)
        )
        size = self._seams.itemsize
        lowest = min([*self._held, self._seams], key=lambda array: array.ctypes.data)
        self._run_places = (addresses - lowest.ctypes.data) // size
        last = int((self._run_places + (self._run_lengths - 1) * length).max())
        self._reach = as_strided(lowest.reshape(-1), (last + 1, length + 1), (size, size), writeable=False)

    def _mapped(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The block's tokens as contiguous arrays, each with its position."""
        for extent in self._extents:
            position = extent.position
            for tokens in self._stream.cache.tokens(extent.segment, extent.start, extent.stop):
                yield position, tokens
                position += len(tokens)

    def _copy_window(self, row: int, out: npt.NDArray[Any]) -> None:
        filled = 0
        for extent in self._extents_of(row):
            for tokens in self._stream.cache.tokens(extent.segment, extent.start, extent.stop):
                out[filled : filled + len(tokens)] = tokens
                filled += len(tokens)
        assert filled == len(out)

    def _extents_of(self, row: int) -> Iterator[Extent]:
        start = row * self._length
        return self._stream.extents(start, start + self._length + 1)

    def _find_skipped(self) -> None:
        """Documents to leave out, as positions on the endless line."""
        self._skipped: list[tuple[int, int]] = []
        for extent in self._extents:
            for start, stop in self._stream.skipped.get(extent.segment, []):
                low, high = max(start, extent.start), min(stop, extent.stop)
                if low < high:
                    offset = extent.position - extent.start
                    self._skipped.append((low + offset, high + offset))

    def _without_skipped(self, tokens: npt.NDArray[Any], rows: Rows) -> RowBatch:
        """Overwrite skipped documents with end-of-text, and take what they would have taught out of the loss."""
        is_skipped = np.zeros(tokens.shape, dtype=bool)
        starts = rows * self._length
        for low, high in self._skipped:
            for index in np.flatnonzero((starts < high) & (starts + self._length >= low)).tolist():
                is_skipped[index, max(low - starts[index], 0) : high - starts[index]] = True
        tokens = np.where(is_skipped, np.array(self._stream.cache.tokenizer.end_of_text_id, tokens.dtype), tokens)
        return RowBatch(tokens, mask=~(is_skipped[:, :-1] | is_skipped[:, 1:]))
