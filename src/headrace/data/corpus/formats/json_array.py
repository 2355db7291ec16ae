"""JSON files: a list of texts, or of objects with a text in one field, is as many documents; any other JSON is plain
text, like source code.

Whether a place lies inside a string is known only from the beginning of a list, so a large one is read front to back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from headrace.data.corpus.chunks import TextRange
from headrace.data.corpus.formats.format import ChosenFormat, Format, TextFormat
from headrace.data.corpus.formats.jsonl import STRING, text_of
from headrace.data.corpus.formats.text import TEXT
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError

ITEM_LIMIT_BYTES = 32 << 20
_LIST = re.compile(rb'(?:\xef\xbb\xbf)?\s*\[\s*["{]')
_OPENING = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[,]")
_MARKS = re.compile(STRING + rb"|[\[\]{},]", re.DOTALL)
_OR_AS_IT_IS = "or read the file as it is: data.as_plain_text=true"


class Json(ChosenFormat):
    """JSON files, of which lists of texts or objects are read item by item."""

    name = "json"
    suffixes = frozenset([".json"])
    shown = ".json"

    def for_beginning(self, source: Source, path: str, beginning: bytes) -> Format:
        """Return the format of lists if the file begins as one of texts or objects; else plain text."""
        return _ITEMS if _LIST.match(beginning) else TEXT


class _Items(TextFormat):
    """A list, of which every item is a document."""

    name = "json items"
    suffixes = frozenset[str]()
    shown = "a list of JSON"
    mark = "json items 1"

    def is_sequential(self, file: SourceFile) -> bool:
        return True

    def find_boundary(self, source: Source, window: bytes, start: int, is_end: bool) -> tuple[int, bool] | None:
        """Find the comma after an item; the window begins with the list, or with such a comma."""
        for _, end in _items(window):
            if end is not None and end >= start and window.startswith(b",", end):
                return end, True
        if len(window) - start <= ITEM_LIMIT_BYTES:
            return (len(window), True) if is_end else None
        raise CorpusError(f"an item of the list is longer than {ITEM_LIMIT_BYTES >> 20} MiB: too long for one document")

    def split(self, source: Source, text: TextRange, raw: bytes, noticed: Counter[str]) -> Iterator[list[bytes]]:
        """Yield the text of every item; one that has none is an error naming `file:line`, or is skipped and counted."""
        documents: list[bytes] = []
        first = 0
        for begin, end in _items(raw):
            if end is None and text.is_last:
                raise CorpusError(f"{_place(text, raw, begin)}: the list is not closed: is the file complete?")
            stop = len(raw) if end is None else end
            try:
                document = text_of(source, raw[begin:stop].strip(), noticed, allows_string=True)
            except ValueError as problem:
                if source.malformed_lines == "skip":
                    noticed["malformed_lines"] += 1
                    continue
                hint = f"Mend the item, leave such items out: data.malformed_lines=skip, {_OR_AS_IT_IS}"
                raise CorpusError(f"{_place(text, raw, begin)}: {problem}. {hint}") from None
            if document:
                documents.append(document)
            else:
                noticed["empty_documents"] += 1
            if stop - first > current_scale().split_bytes:
                yield documents
                documents, first = [], stop
        yield documents


_ITEMS = _Items()


def _items(raw: bytes) -> Iterator[tuple[int, int | None]]:
    """Yield where each item begins and ends; None as the end of one that goes on to the end of the bytes, or beyond.

    An item ends with the comma or the bracket after it. What stands after the list is an item too, and no valid one.
    """
    opening = _OPENING.match(raw)
    begin = opening.end() if opening else 0
    depth = 0
    for found in _MARKS.finditer(raw, begin):
        mark = found[0]
        if mark in b"{[":
            depth += 1
        elif depth and mark in b"}]":
            depth -= 1
        elif not depth and mark == b",":
            yield begin, found.start()
            begin = found.end()
        elif not depth and mark == b"]":
            if raw[begin : found.start()].strip():
                yield begin, found.start()
            if raw[found.end() :].strip():
                yield found.end(), len(raw)
            return
    yield begin, None


def _place(text: TextRange, raw: bytes, begin: int) -> str:
    """Return the file and the line of an item, for an error message."""
    begin += len(raw[begin:]) - len(raw[begin:].lstrip())
    line = text.first_line() + raw.count(b"\n", 0, begin)
    return f"{text.path}:{line}"
