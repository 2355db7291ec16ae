"""Windows of T+1 tokens over the endless stream: no padding, nothing discarded, one gather per batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from headrace.data.corpus.scale import current_scale
from headrace.data.order.rows import Block, Extent, RowBatch, Rows, TokenRanges
from headrace.data.order.stream import Stream


class WindowPacking:
    """A packing of T+1 tokens per row: window k reads the tokens [kT, kT + T] of the stream.

    The first T are inputs, the last T targets, so every token is an input once per pass. Tokens left at the end of a
    block or a pass are carried into the next.
    """

    def __init__(self, sequence_length: int) -> None:
        self.sequence_length = sequence_length
        self.largest_block_bytes = current_scale().largest_window_block_bytes

    def measure(self, stream: Stream, segment: int) -> int:
        return stream.split.num_tokens(segment)

    def last_position(self, row: int) -> int:
        return (row + 1) * self.sequence_length

    def num_rows(self, position: int) -> int:
        return max(position - 1, 0) // self.sequence_length

    def view(self, stream: Stream, block: Block) -> WindowView:
        return WindowView(stream, block, self.sequence_length)


class WindowView:
    """The windows of a block.

    The block's tokens are pieces of mapped shards, one after the other. Windows that lie within one piece are found
    through runs of them: window k of run r begins at element `_run_places[r] + (k - _run_rows[r]) * T`. Windows that
    cross from one piece into another (seams) are put together token by token.

    Elements are counted from the lowest address in use: all mappings lie in one address space, so a single strided view
    reaches every window, and a batch is one NumPy gather instead of one per shard (2.3 times as fast; see
    docs/design/serving.md). The view spans memory that is not ours, hence the assertions.
    """

    def __init__(self, stream: Stream, block: Block, sequence_length: int) -> None:
        self._stream = stream
        self._first_row, self._stop_row = block.first_row, block.stop_row
        self._length = sequence_length
        self._find_pieces(block.first_row * sequence_length, block.stop_row * sequence_length + 1)
        self._find_runs()

    def gather(self, places: Rows) -> RowBatch:
        rows = places + self._first_row
        runs = np.searchsorted(self._run_rows, rows, side="right") - 1
        within = rows - self._run_rows[runs]
        is_whole = within < self._run_lengths[runs]
        assert (within >= 0).all() and (rows < self._stop_row).all(), "a window outside its block"
        # Seams first get some other window: one gather of all rows costs less than selecting rows before and after it.
        tokens = self._windows[np.where(is_whole, self._run_places[runs] + within * self._length, self._run_places[-1])]
        seams = np.flatnonzero(~is_whole)
        step = max(1, current_scale().seam_tokens // self._length)
        for start in range(0, len(seams), step):
            some = seams[start : start + step]
            tokens[some] = self._put_together(rows[some])
        if not self._stream.skipped:
            return RowBatch(tokens)
        return self._without_skipped(tokens, rows)

    def trace(self, place: int) -> list[Extent]:
        start = (self._first_row + place) * self._length
        return list(self._stream.extents(start, start + self._length + 1))

    def _find_pieces(self, start: int, stop: int) -> None:
        """Lay out what stands on the positions [start, stop): where each contiguous piece begins, and its address."""
        cache = self._stream.cache
        self._held: list[npt.NDArray[Any]] = []  # keeps the mappings alive while their addresses are in use
        self._skipped: list[tuple[int, int]] = []
        positions, addresses = [], []
        for ranges in self._stream.token_ranges(start, stop):
            self._add_skipped(ranges)
            before = 0
            for tokens in cache.tokens(ranges.segment, 0, cache.entry(ranges.segment).num_tokens):
                low = np.maximum(ranges.starts, before)
                inside = np.flatnonzero(low < np.minimum(ranges.stops, before + len(tokens)))
                if len(inside):
                    positions.append((ranges.positions + low - ranges.starts)[inside])
                    addresses.append(tokens.ctypes.data + (low[inside] - before) * tokens.itemsize)
                    self._held.append(tokens)
                before += len(tokens)
        self._positions = np.concatenate([*positions, [stop]])
        """Where pieces begin on the endless line, and where the last one ends."""
        lowest = min(self._held, key=lambda array: array.ctypes.data)
        self._places = (np.concatenate(addresses) - lowest.ctypes.data) // lowest.itemsize
        last = int((self._places + np.diff(self._positions)).max())
        self._tokens = as_strided(lowest, (last,), (lowest.itemsize,), writeable=False)

    def _find_runs(self) -> None:
        """Find the runs of windows that each lie within one piece."""
        length = self._length
        starts, stops = self._positions[:-1], self._positions[1:]
        first = -(-starts // length)
        count = (stops - 1) // length - first
        runs = np.flatnonzero(count > 0)
        # An empty run comes first, so that every window has a run at or before it.
        self._run_rows = np.append(self._first_row, first[runs])
        self._run_lengths = np.append(0, count[runs])
        self._run_places = np.append(0, (self._places + first * length - starts)[runs])
        tokens = self._tokens if len(runs) else np.zeros(length + 1, self._tokens.dtype)  # a stand-in, never read
        shape, size = (len(tokens) - length, length + 1), tokens.itemsize
        self._windows = as_strided(tokens, shape, (size, size), writeable=False)

    def _put_together(self, rows: Rows) -> npt.NDArray[Any]:
        """Return windows that cross from one piece into another, assembled from their pieces."""
        width = self._length + 1
        starts = rows * self._length
        first = np.searchsorted(self._positions, starts, side="right") - 1
        num_pieces = np.searchsorted(self._positions, starts + width, side="left") - first
        number = np.arange(int(num_pieces.sum())) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
        pieces, begin = np.repeat(first, num_pieces) + number, np.repeat(starts, num_pieces)
        lengths = np.minimum(self._positions[pieces + 1], begin + width) - np.maximum(self._positions[pieces], begin)
        assert (lengths > 0).all() and lengths.sum() == len(rows) * width, "pieces that do not make up the windows"
        places = self._places[pieces] - self._positions[pieces]
        if len(pieces) * current_scale().short_piece_tokens > lengths.sum():
            wanted = np.repeat(places, lengths).reshape(-1, width) + (starts[:, None] + np.arange(width))
            gathered: npt.NDArray[Any] = self._tokens[wanted]
            return gathered
        windows = np.empty(len(rows) * width, dtype=self._tokens.dtype)
        places += np.maximum(self._positions[pieces], begin)
        filled = 0
        for place, length in zip(places.tolist(), lengths.tolist(), strict=True):
            windows[filled : filled + length] = self._tokens[place : place + length]
            filled += length
        return windows.reshape(-1, width)

    def _add_skipped(self, ranges: TokenRanges) -> None:
        """Note documents to leave out, as positions on the endless line."""
        for start, stop in self._stream.skipped.get(ranges.segment, []):
            low, high = np.maximum(start, ranges.starts), np.minimum(stop, ranges.stops)
            for piece in np.flatnonzero(low < high).tolist():
                shift = int(ranges.positions[piece] - ranges.starts[piece])
                self._skipped.append((int(low[piece]) + shift, int(high[piece]) + shift))

    def _without_skipped(self, tokens: npt.NDArray[Any], rows: Rows) -> RowBatch:
        """Overwrite skipped documents with end-of-text, and mask the targets in or right after them out of the loss."""
        is_skipped = np.zeros(tokens.shape, dtype=bool)
        starts = rows * self._length
        for low, high in self._skipped:
            for index in np.flatnonzero((starts < high) & (starts + self._length >= low)).tolist():
                is_skipped[index, max(low - starts[index], 0) : high - starts[index]] = True
        tokens = np.where(is_skipped, np.array(self._stream.cache.tokenizer.end_of_text_id, tokens.dtype), tokens)
        return RowBatch(tokens, mask=~(is_skipped[:, :-1] | is_skipped[:, 1:]))
