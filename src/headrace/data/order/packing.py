"""Document packing: documents of at most T tokens share rows and are never cut; longer ones fill whole rows first.

Packing is best-fit decreasing, done for one segment at a time. So the number of rows of a segment never changes, and
any row of any pass is found by adding numbers up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headrace.data.corpus.scale import current_scale
from headrace.data.order.rows import Block, Extent, RowBatch, Rows
from headrace.data.order.stream import Stream

Ints = npt.NDArray[np.int64]
PackingName = Literal["stream", "document"]


@dataclass(frozen=True)
class PackedRows:
    """The rows of a segment. Row r holds the items [row_stops[r - 1], row_stops[r])."""

    starts: npt.NDArray[np.uint32]
    """Where in the segment each item's first input stands."""
    lengths: npt.NDArray[np.uint32]
    """Inputs of each item; its targets are the same tokens moved on by one."""
    row_stops: Ints

    @property
    def num_rows(self) -> int:
        return len(self.row_stops)


class DocumentPacking:
    """Rows of whole documents. A document of n tokens takes n inputs; its last target is its end-of-text."""

    def __init__(self, sequence_length: int) -> None:
        self.sequence_length = sequence_length
        self.largest_block_bytes = current_scale().largest_packed_block_bytes
        self._num_rows: dict[int, int] = {}

    def measure(self, stream: Stream, segment: int) -> int:
        if segment not in self._num_rows:
            self._num_rows[segment] = self.rows_of(stream, segment).num_rows
        return self._num_rows[segment]

    def last_position(self, row: int) -> int:
        return row

    def num_rows(self, position: int) -> int:
        return position

    def view(self, stream: Stream, block: Block) -> PackedView:
        return PackedView(stream, block, self)

    def rows_of(self, stream: Stream, segment: int) -> PackedRows:
        """Pack the documents of one segment."""
        return pack_documents(*stream.split.documents(segment), self.sequence_length)


def pack_documents(first: npt.NDArray[np.int32], stops: npt.NDArray[np.int32], length: int) -> PackedRows:
    """Lay out rows for the documents of these token ranges.

    >>> rows = pack_documents(np.array([0, 4, 7]), np.array([4, 7, 13]), length=5)   # documents of 3, 2 and 5 tokens
    >>> rows.num_rows, rows.lengths.tolist()
    (2, [5, 3, 2])
    """
    # A segment may hold millions of tiny documents, hence small types and few arrays.
    size = stops - first - np.int32(1)  # the last token of a document is only ever a target
    del stops
    # Whole rows of long documents, then what remains of every document.
    is_long = np.flatnonzero(size >= length)
    num_full = size[is_long] // np.int32(length)
    full_of = np.repeat(is_long, num_full)
    number = np.arange(len(full_of)) - np.repeat(np.cumsum(num_full) - num_full, num_full)
    full_starts = first[full_of] + (number * length).astype(np.int32)
    first = first.copy() if len(is_long) else first
    first[is_long] += num_full * np.int32(length)
    size[is_long] -= num_full * np.int32(length)
    left = np.flatnonzero(size > 0) if (size <= 0).any() else slice(None)
    starts = np.concatenate([full_starts, first[left]])
    lengths = np.concatenate([np.full(len(full_of), length, np.int32), size[left]])
    del first, size
    row_of, num_rows = best_fit(lengths, length)
    row_stops = np.cumsum(np.bincount(row_of, minlength=num_rows))
    by_row = np.argsort(row_of, kind="stable")
    del row_of
    return PackedRows(starts[by_row].astype(np.uint32), lengths[by_row].astype(np.uint32), row_stops)


def best_fit(lengths: npt.NDArray[Any], capacity: int) -> tuple[npt.NDArray[np.int32], int]:
    """Assign items to rows, longest first, each into the row where it leaves the least room.

    Items of one length are alike, and so are rows with the same room left, so whole groups are assigned at a time: the
    work depends on how many different lengths there are rather than on how many items.
    """
    row_of = np.empty(len(lengths), dtype=np.int32)
    counts_of = np.bincount(lengths, minlength=capacity + 1)
    small = np.uint16 if capacity < 1 << 16 else np.uint32  # NumPy sorts 16-bit numbers by radix
    by_length = np.argsort((capacity - lengths).astype(small), kind="stable")
    rows_with_room: list[list[npt.NDArray[np.int32]]] = [[] for _ in range(capacity + 1)]
    roomy = np.zeros(capacity + 1, dtype=bool)
    num_rows = 0
    place = 0
    for length in range(capacity, 0, -1):
        count = int(counts_of[length])
        items = by_length[place : place + count]
        place += count
        while len(items):
            room = length + int(roomy[length:].argmax()) if roomy[length:].any() else capacity
            per_row = room // length  # a row that has just taken an item is the fullest that has room for the next
            wanted = -(-len(items) // per_row)
            if rows_with_room[room]:
                rows = rows_with_room[room].pop()
                if len(rows) > wanted:
                    rows_with_room[room].append(rows[wanted:])
                    rows = rows[:wanted]
                roomy[room] = bool(rows_with_room[room])
            else:
                rows = np.arange(num_rows, num_rows + wanted, dtype=np.int32)
                num_rows += wanted
            taken = min(len(items), len(rows) * per_row)
            row_of[items[:taken]] = np.repeat(rows, per_row)[:taken]
            items = items[taken:]
            full, extra = divmod(taken, per_row)
            for left, group in ((room - per_row * length, rows[:full]), (room - extra * length, rows[full:])):
                if left > 0 and len(group):
                    rows_with_room[left].append(group)
                    roomy[left] = True
    return row_of, num_rows


class PackedView:
    """The rows of a block of segments, one segment after the other."""

    def __init__(self, stream: Stream, block: Block, packing: DocumentPacking) -> None:
        self._stream = stream
        self._length = packing.sequence_length
        self._segments = block.segments
        self._rows = [packing.rows_of(stream, segment) for segment in block.segments.tolist()]
        self._stops = np.cumsum([rows.num_rows for rows in self._rows])

    def gather(self, places: Rows) -> RowBatch:
        cache = self._stream.cache
        tokens = np.full((len(places), 2 * self._length), cache.tokenizer.end_of_text_id, dtype=cache.dtype)
        documents = np.zeros((len(places), self._length), dtype=np.int32)
        owners = np.searchsorted(self._stops, places, side="right")
        for owner in np.unique(owners).tolist():
            chosen = np.flatnonzero(owners == owner)
            before = int(self._stops[owner - 1]) if owner else 0
            self._gather_segment(owner, places[chosen] - before, chosen, tokens, documents)
        return RowBatch(tokens, documents, documents > 0)

    def trace(self, place: int) -> list[Extent]:
        owner = int(np.searchsorted(self._stops, place, side="right"))
        row = place - (int(self._stops[owner - 1]) if owner else 0)
        rows, segment = self._rows[owner], int(self._segments[owner])
        first = int(rows.row_stops[row - 1]) if row else 0
        items = range(first, int(rows.row_stops[row]))
        return [Extent(segment, int(rows.starts[i]), int(rows.starts[i]) + int(rows.lengths[i]) + 1, -1) for i in items]

    def _gather_segment(
        self,
        owner: int,
        local_rows: Rows,
        targets: Rows,
        tokens: npt.NDArray[Any],
        documents: npt.NDArray[np.int32],
    ) -> None:
        rows, segment = self._rows[owner], int(self._segments[owner])
        first = np.where(local_rows > 0, rows.row_stops[local_rows - 1], 0)
        num_items = rows.row_stops[local_rows] - first
        # One entry per item, then one per token.
        row_of_item = np.repeat(np.arange(len(local_rows)), num_items)
        number = np.arange(len(row_of_item)) - np.repeat(np.cumsum(num_items) - num_items, num_items)
        items = first[row_of_item] + number
        lengths, starts = rows.lengths[items].astype(np.int64), rows.starts[items].astype(np.int64)
        before = np.cumsum(lengths) - lengths
        column = before - np.repeat(before[np.cumsum(num_items) - num_items], num_items)
        within = np.arange(int(lengths.sum())) - np.repeat(before, lengths)
        row = np.repeat(targets[row_of_item], lengths)
        col = np.repeat(column, lengths) + within
        place = np.repeat(starts, lengths) + within
        ids = np.repeat(number + 1, lengths)
        keep = self._kept(segment, place)
        if keep is not None:
            row, col, place, ids = row[keep], col[keep], place[keep], ids[keep]
        tokens[row, col] = _take(self._stream, segment, place)
        tokens[row, self._length + col] = _take(self._stream, segment, place + 1)
        documents[row, col] = ids

    def _kept(self, segment: int, place: Ints) -> npt.NDArray[np.bool_] | None:
        """Return which places to keep, None for all; the tokens of skipped documents become padding."""
        ranges = self._stream.skipped.get(segment)
        if not ranges:
            return None
        keep = np.ones(len(place), dtype=bool)
        for start, stop in ranges:
            keep &= (place < start) | (place >= stop)
        return keep


def _take(stream: Stream, segment: int, places: Ints) -> npt.NDArray[Any]:
    """Return the tokens at any places of a segment."""
    arrays = list(stream.cache.tokens(segment, 0, stream.cache.entry(segment).num_tokens))
    if len(arrays) == 1:
        return arrays[0][places]
    taken = np.empty(len(places), dtype=arrays[0].dtype)
    before = 0
    for array in arrays:
        inside = (places >= before) & (places < before + len(array))
        taken[inside] = array[places[inside] - before]
        before += len(array)
    return taken
