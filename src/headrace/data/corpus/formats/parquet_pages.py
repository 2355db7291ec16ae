"""How large the pages of a parquet column are once expanded, by their own headers.

A reader allocates what a page's header says, and the footer may say anything else. Page headers are Thrift structs in
the compact protocol; of each only the fields 1 to 3 (kind, expanded and stored size) are needed, and its length.
"""

from __future__ import annotations

from typing import Any

from headrace.data.corpus.planned_files import PlannedFile

_HEADER_BYTES = 8 << 10
_MAX_HEADER_BYTES = 16 << 20
_MAX_DEPTH = 8
_DICTIONARY = 2  # the kind of page that holds the distinct values


def page_bytes(file: PlannedFile, column: Any) -> tuple[int, int]:
    """Return the expanded bytes of all pages of a column chunk (`ColumnChunkMetaData`), and of its dictionaries."""
    place, dictionary = column.data_page_offset, column.dictionary_page_offset if column.has_dictionary_page else None
    if dictionary:  # some writers say 0 where there is none
        place = min(place, dictionary)
    end = place + column.total_compressed_size
    total = dictionaries = 0
    while place < end:
        file.expect(place, end)
        kind, expanded, stored, length = _page_header(file, place)
        total += expanded
        dictionaries += expanded if kind == _DICTIONARY else 0
        place += length + stored
    return total, dictionaries


def _page_header(file: PlannedFile, place: int) -> tuple[int, int, int, int]:
    """Return the kind of a page, its expanded size, its stored size, and the header's own length."""
    size = _HEADER_BYTES
    while True:
        data = file.read_at(size, place)
        try:
            reader = _Compact(data)
            fields = reader.struct()
            break
        except IndexError:
            if len(data) < size or size >= _MAX_HEADER_BYTES:
                raise ValueError(f"the page header at byte {place:,} is not whole") from None
            size *= 8
    expanded, stored = fields.get(2, -1), fields.get(3, -1)
    if expanded < 0 or stored < 0:
        raise ValueError(f"the page header at byte {place:,} has no sizes")
    return fields.get(1, 0), expanded, stored, reader.place


class _Compact:
    """Reads integers of a struct in Thrift's compact protocol, and skips everything else."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def struct(self, depth: int = 0) -> dict[int, int]:
        if depth > _MAX_DEPTH:
            raise ValueError("a page header is nested too deeply")
        fields: dict[int, int] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._integer()
            value = self._value(head & 15, depth)
            if value is not None:
                fields[number] = value
        return fields

    def _value(self, kind: int, depth: int) -> int | None:
        if kind in (1, 2):  # true and false have no bytes
            return None
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 12:
            self.struct(depth + 1)
        elif kind in (9, 10):
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
                if head & 15 in (1, 2):
                    self._byte()
                else:
                    self._value(head & 15, depth + 1)
        elif kind in (3, 7, 8):
            length = {3: 1, 7: 8}.get(kind) or self._varint()
            self.place += length
            self._data[self.place - 1]  # an IndexError where it is not all there
        else:
            raise ValueError(f"a page header has a field of the unknown kind {kind}")
        return None

    def _byte(self) -> int:
        self.place += 1
        return self._data[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a page header has a number without an end")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
