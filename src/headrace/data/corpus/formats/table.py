"""Tables of values with delimiters (.csv, .tsv): one column holds the texts, and every row is a document.

A quoted field may hold delimiters, line ends and doubled quotes. Whether a place lies inside one is known only from the
beginning of the file, so a large table is read front to back. A quote inside a field that does not begin with one is a
character like any other, as in Python's own reader.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from headrace.data.corpus.chunks import TextRange
from headrace.data.corpus.formats.format import ChosenFormat, Format, TextFormat
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.signatures import refuse_what_is_not_text
from headrace.data.corpus.sources import Source, SourceFile
from headrace.data.corpus.utf8 import without_byte_order_mark
from headrace.errors import CorpusError, NoTextColumnError

ROW_LIMIT_BYTES = 32 << 20
_QUOTED = re.compile(rb'"[^"]*+(?:""[^"]*+)*+"(?!")')
_OR_AS_IT_IS = "or read the file as it is: data.as_plain_text=true"


class Csv(ChosenFormat):
    """Values with commas between them, or semicolons, tabs or bars if the first row has more of those."""

    name = "csv"
    suffixes = frozenset([".csv"])
    shown = ".csv"
    delimiters: tuple[bytes, ...] = (b",", b";", b"\t", b"|")

    def for_beginning(self, source: Source, path: str, beginning: bytes) -> Format:
        """Return the table's own format, which knows its delimiter and column; without the column, refuse the file."""
        refuse_what_is_not_text(beginning, path)
        raw = without_byte_order_mark(beginning, Counter())
        end = _row_end(raw, 0, b"".join(self.delimiters), is_end=True)
        header = raw if end is None else raw[:end]
        delimiter = max(self.delimiters, key=header.count)
        names = [name.decode("utf-8", "replace").strip() for name in _fields(header.rstrip(b"\r\n"), delimiter)]
        if names.count(source.text_field) != 1:
            longest = _longest(raw[len(header) :], delimiter, len(names))
            raise NoTextColumnError(_no_column(source, path, names, longest))
        return _Table(self.name, delimiter, names.index(source.text_field), len(names))


class Tsv(Csv):
    """Values with tabs between them."""

    name = "tsv"
    suffixes = frozenset([".tsv"])
    shown = ".tsv"
    delimiters = (b"\t",)


class _Table(TextFormat):
    """One table: its delimiter, and which of its columns holds the texts."""

    suffixes = frozenset[str]()
    shown = "a table"

    def __init__(self, kind: str, delimiter: bytes, column: int, num_columns: int) -> None:
        self.name = f"{kind} {delimiter.decode()!r} {column} of {num_columns}"
        self.mark = self.name
        self._delimiter, self._column, self._num_columns = delimiter, column, num_columns

    def is_sequential(self, file: SourceFile) -> bool:
        return True

    def find_boundary(self, source: Source, window: bytes, start: int, is_end: bool) -> tuple[int, bool] | None:
        """Find the end of a row; no document continues in another segment. The window begins with a row."""
        place = _row_end(window, start, self._delimiter, is_end)
        if place is not None and place - start <= ROW_LIMIT_BYTES:
            return place, True
        if len(window) - start <= ROW_LIMIT_BYTES:
            return (len(window), True) if is_end else None
        raise CorpusError(
            f"a row is longer than {ROW_LIMIT_BYTES >> 20} MiB: is the closing quote of a field missing? Mend it,"
            f" {_OR_AS_IT_IS}"
        )

    def split(self, source: Source, text: TextRange, raw: bytes, noticed: Counter[str]) -> Iterator[list[bytes]]:
        """Yield the text of every row; one that has none is an error naming `file:line`, or is skipped and counted."""
        documents: list[bytes] = []
        line = first = 0
        for number, (begin, end) in enumerate(_rows(raw, self._delimiter)):
            if end is None:
                place = f"{text.path}:{text.first_line() + line}"
                raise CorpusError(f"{place}: the closing quote of a field is missing. Mend it, {_OR_AS_IT_IS}")
            row = raw[begin:end].rstrip(b"\r\n")
            if row and (number or text.offset):  # the first row of a file has the names of the columns
                self._add(source, text, row, line, documents, noticed)
            line += raw.count(b"\n", begin, end)
            if end - first > current_scale().split_bytes:
                yield documents
                documents, first = [], end
        yield documents

    def _add(
        self, source: Source, text: TextRange, row: bytes, line: int, documents: list[bytes], noticed: Counter[str]
    ) -> None:
        fields = _fields(row, self._delimiter)
        if len(fields) != self._num_columns:
            if source.malformed_lines == "refuse":
                raise CorpusError(
                    f"{text.path}:{text.first_line() + line}: {len(fields)} fields where the first row has"
                    f" {self._num_columns}. Mend the row, or leave such rows out: data.malformed_lines=skip"
                )
            noticed["malformed_lines"] += 1
        elif fields[self._column]:
            documents.append(fields[self._column])
        else:
            noticed["empty_documents"] += 1


def _row_end(window: bytes, start: int, delimiters: bytes, is_end: bool) -> int | None:
    """Return the end of the first row that ends at or after `start`; None: the window, which begins with a row, does
    not show it."""
    place, quote = 0, _next_quote(window, 0, delimiters)
    while True:
        line_end = window.find(b"\n", max(start, place), len(window) if quote is None else quote)
        if line_end >= 0:
            return line_end + 1
        if quote is None:
            return len(window) if is_end else None
        closed = _QUOTED.match(window, quote)
        if closed is None or (closed.end() == len(window) and not is_end):
            return None
        place = closed.end()
        quote = _next_quote(window, place, delimiters)


def _rows(raw: bytes, delimiters: bytes) -> Iterator[tuple[int, int | None]]:
    """Yield where each row begins and ends; None as the end of a row that a field without its closing quote is in."""
    row = place = 0
    quote = _next_quote(raw, 0, delimiters)
    while row < len(raw):
        line_end = raw.find(b"\n", place, len(raw) if quote is None else quote)
        if line_end >= 0:
            yield row, line_end + 1
            row = place = line_end + 1
        elif quote is None:
            yield row, len(raw)
            return
        else:
            closed = _QUOTED.match(raw, quote)
            if closed is None:
                yield row, None
                return
            place = closed.end()
            quote = _next_quote(raw, place, delimiters)


def _next_quote(window: bytes, place: int, delimiters: bytes) -> int | None:
    """Return the next quote at the beginning of a field."""
    if not place and window.startswith(b'"'):
        return 0
    found = _opening(delimiters).search(window, place)
    return None if found is None else found.end() - 1


@lru_cache
def _opening(delimiters: bytes) -> re.Pattern[bytes]:
    return re.compile(b"[\n" + re.escape(delimiters) + b']"')


def _fields(row: bytes, delimiter: bytes) -> list[bytes]:
    """Return the fields of a row, without their quotes.

    >>> _fields(b'1,"a ""b"", c",5" disk,', b",")
    [b'1', b'a "b", c', b'5" disk', b'']
    """
    if b'"' not in row:
        return row.split(delimiter)
    fields = []
    place = 0
    while True:
        quoted = _QUOTED.match(row, place)
        begin = place if quoted is None else quoted.end()
        end = row.find(delimiter, begin)
        rest = row[begin:] if end < 0 else row[begin:end]
        fields.append(rest if quoted is None else quoted[0][1:-1].replace(b'""', b'"') + rest)
        if end < 0:
            return fields
        place = end + 1


def _longest(raw: bytes, delimiter: bytes, num_columns: int) -> int:
    """Return the column with the longest texts in the first rows: very likely the one that is meant."""
    lengths = [0] * num_columns
    for begin, end in islice(_rows(raw, delimiter), 20):
        fields = _fields(raw[begin:end].rstrip(b"\r\n"), delimiter)
        for column, field in enumerate(fields[:num_columns]):
            lengths[column] += len(field)
    return lengths.index(max(lengths))


def _no_column(source: Source, path: str, names: list[str], longest: int) -> str:
    shown = ", ".join(name[:40] or "(no name)" for name in names[:20]) + (", …" if len(names) > 20 else "")
    typed = shlex.quote(f"data.text_field={names[longest]}")
    again = " once" if names.count(source.text_field) > 1 else ""
    return (
        f"{path}: no column {source.text_field!r}{again} (it has: {shown}). Name the right one, such as {typed};"
        f" {_OR_AS_IT_IS}"
    )
