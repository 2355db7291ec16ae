"""Plain text: a file, a line, a paragraph, or what stands between delimiters is a document."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from headrace.data.corpus.chunks import TextRange
from headrace.data.corpus.cuts import character_start, first_safe_cut
from headrace.data.corpus.formats.format import BOUNDARY_BYTES, TextFormat
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source

_BLANK_LINES = re.compile(rb"\r?\n(?:[ \t\r]*\n)+")
_SPACES = re.compile(rb"[ \t\r]*")
_BLANK_LINES_AT_START = re.compile(rb"(?:[ \t\r]*\n)*")


class PlainText(TextFormat):
    """Text files, source code included; the source's option `document` says what one document is."""

    name = "text"
    suffixes = frozenset(
        f".{name}"
        for line in (
            "txt text md markdown rst tex org adoc log srt xml yaml yml toml ini cfg",
            "py pyi ipynb c h cc cpp cxx hpp hh cu cuh m mm java kt scala go rs swift zig js mjs ts jsx tsx vue css",
            "scss rb php pl pm lua r jl hs ml mli fs ex exs erl clj lisp el sh bash zsh ps1 sql proto cmake mk gradle",
            "asm s v vhd nim dart cs vb f90 f pas tcl awk vim",
        )
        for name in line.split()
    )
    shown = ".txt, .md, source code"

    def context_bytes(self, source: Source) -> int:
        """Return how much text `find_boundary` looks at before its start: a character, or a delimiter."""
        return max(4, len(source.delimiter.encode()))

    def reach_bytes(self, source: Source) -> int:
        """Return how much text shows that no document ends within a MiB, where only files are documents."""
        return 16 * BOUNDARY_BYTES if source.document == "file" else BOUNDARY_BYTES

    def find_boundary(self, source: Source, window: bytes, start: int, is_end: bool) -> tuple[int, bool] | None:
        """Find the end of a document within a MiB, else the first cut that leaves tokens alone, else after a MiB."""
        limit = current_scale().boundary_window_bytes
        place = _document_boundary(source, window, start, is_end)
        if place is not None and place <= start + limit:
            return place, True
        if len(window) - start <= limit:
            return (len(window), True) if is_end else None
        return _cut_inside_document(source, window, start, start + limit), False

    def split(self, source: Source, text: TextRange, raw: bytes, noticed: Counter[str]) -> Iterator[list[bytes]]:
        first, last = None, None
        for documents in _split_text(source, raw, text.is_open, text.offset == 0):
            if last is not None:
                yield _without_empty(last, last is first and text.is_continuation, False, noticed)
            first, last = first or documents, documents
        if last is not None:
            yield _without_empty(last, last is first and text.is_continuation, text.is_open, noticed)


TEXT = PlainText()
"""The format of a file that the user names explicitly and whose suffix belongs to no format."""


def _document_boundary(source: Source, window: bytes, start: int, is_end: bool) -> int | None:
    if source.document == "line":
        return window.find(b"\n", start) + 1 or None
    if source.document == "delimiter":
        return _delimiter_end(source.delimiter.encode(), window, start, is_end)
    if source.document == "paragraph":
        found = _BLANK_LINES.search(window, start)
        # A line of spaces at the window's end may turn out to be one more blank line.
        return found.end() if found and _skip(_SPACES, window, found.end()) < len(window) else None
    return None  # document: file


def _skip(pattern: re.Pattern[bytes], data: bytes, start: int) -> int:
    """Return the end of a match at this place, of a pattern that matches everywhere (if only the empty text)."""
    found = pattern.match(data, start)
    assert found is not None
    return found.end()


def _delimiter_end(delimiter: bytes, window: bytes, start: int, is_end: bool) -> int | None:
    """Return the end of the first delimiter that overlaps no other: whoever splits the whole file finds it too."""
    size = len(delimiter)
    place = window.find(delimiter, start)
    while 0 <= place <= start + current_scale().boundary_window_bytes:
        if len(window) < place + 2 * size - 1 and not is_end:
            return None
        after = window.find(delimiter, place + 1, place + 2 * size - 1)
        if after < 0 and window.find(delimiter, max(place - size + 1, 0), place + size - 1) < 0:
            return place + size
        place = window.find(delimiter, place + 1)
    return None


def _cut_inside_document(source: Source, window: bytes, start: int, stop: int) -> int:
    delimiter = source.delimiter.encode()
    cut = first_safe_cut(window, start, stop)
    while cut is not None and _delimiter_around(delimiter, window, cut) is not None:
        cut = first_safe_cut(window, cut + 1, stop)
    if cut is not None:
        return cut
    cut = character_start(window, stop)
    if source.document == "file":
        return cut
    # Blank lines, line ends and delimiters stay whole, unless there is nothing else in all the window.
    cut = start + len(window[start:cut].rstrip(b" \t\r\n"))
    while (begin := _delimiter_around(delimiter, window, cut)) is not None and begin > start:
        cut = begin
    return cut if cut > start else character_start(window, stop)


def _delimiter_around(delimiter: bytes, window: bytes, cut: int) -> int | None:
    """Return where the delimiter begins that a cut would fall into, if there is one."""
    size = len(delimiter)
    place = window.find(delimiter, max(cut - size + 1, 0), cut + size - 1) if delimiter else -1
    return place if place >= 0 else None


def _without_empty(documents: list[bytes], has_rest: bool, has_open: bool, noticed: Counter[str]) -> list[bytes]:
    """Leave out empty documents, except a first or last one that belongs to a document beyond the range."""
    if all(documents):
        return documents
    last = len(documents) - 1
    kept = [
        document
        for number, document in enumerate(documents)
        if document or (has_rest and number == 0) or (has_open and number == last)
    ]
    noticed["empty_documents"] += len(documents) - len(kept)
    return kept


def _split_text(source: Source, raw: bytes, is_open: bool, is_start: bool) -> Iterator[list[bytes]]:
    if source.document == "file":
        if raw:
            yield [raw]
    elif source.document == "line":
        yield from split_lines(raw)
        if is_open and raw.endswith(b"\n"):
            yield [b""]
    else:
        if source.document == "paragraph":
            separator = _BLANK_LINES
            raw = raw[_skip(_BLANK_LINES_AT_START, raw, 0) :] if is_start else raw
            raw = raw if is_open else _without_blank_end(raw)
        else:
            separator = re.compile(re.escape(source.delimiter.encode()))
        yield from _split_at(separator, raw, is_open)


def _without_blank_end(raw: bytes) -> bytes:
    """Remove the last line end and all blank lines after it."""
    text = raw.rstrip(b" \t\r\n")
    line_end = raw.find(b"\n", len(text))
    return raw if line_end < 0 else raw[:line_end].removesuffix(b"\r")


def split_lines(raw: bytes) -> Iterator[list[bytes]]:
    """Yield lines without their ends, some at a time."""
    size, start = current_scale().split_bytes, 0
    while start < len(raw):
        stop = raw.find(b"\n", min(start + size, len(raw) - 1)) + 1 or len(raw)
        window = raw[start:stop]
        lines = window.removesuffix(b"\n").split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines] if b"\r" in window else lines
        start = stop


def _split_at(separator: re.Pattern[bytes], raw: bytes, is_open: bool) -> Iterator[list[bytes]]:
    documents: list[bytes] = []
    start = first = 0
    size = current_scale().split_bytes
    for found in separator.finditer(raw):
        documents.append(raw[start : found.start()])
        start = found.end()
        if start - first > size:
            yield documents
            documents, first = [], start
    if start < len(raw) or is_open:  # what stands after the last separator, if anything
        documents.append(raw[start:])
    if documents:
        yield documents
