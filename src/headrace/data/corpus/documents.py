"""Raw bytes become documents: where a document ends, and what is done about bytes, lines and fields that are wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.data.corpus.cuts import character_start, first_safe_cut
from headrace.data.corpus.signatures import looks_like_latin1, refuse_what_is_not_text
from headrace.data.corpus.sources import Format, Source
from headrace.errors import CorpusError

BOUNDARY_WINDOW_BYTES = 1 << 20
JSON_LINE_LIMIT_BYTES = 32 << 20
JSON_STRUCTURE_LIMIT_BYTES = 4 << 20
SPLIT_BYTES = 256 << 10

_BLANK_LINES = re.compile(rb"\r?\n(?:[ \t\r]*\n)+")
_JSON_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_SPACES = re.compile(rb"[ \t\r]*")
_BLANK_LINES_AT_START = re.compile(rb"(?:[ \t\r]*\n)*")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_REPLACEMENT = "\ufffd".encode()
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Stretch:
    """Part of a file that is read at once."""

    raw: bytes
    path: str
    format: Format
    offset: int = 0
    """Where it stands in the (decompressed) file."""
    is_continuation: bool = False
    """Whether it begins in the middle of a document."""
    is_open: bool = False
    """Whether its last document goes on beyond it."""
    first_line: Callable[[], int] = lambda: 1
    """The number of its first line; only asked for error messages."""


def find_boundary(source: Source, is_jsonl: bool, window: bytes, start: int, is_end: bool) -> tuple[int, bool] | None:
    """Return the first place at or after `start` where the text may be cut, and whether a document ends there.

    A document boundary within a MiB is preferred; else the first cut that leaves tokens alone, else a fixed distance.
    No cut falls inside a character or a separator: the window shows `context_bytes` before `start`, or begins at a cut.
    None: the window must grow before this can be told.
    """
    limit = JSON_LINE_LIMIT_BYTES if is_jsonl else BOUNDARY_WINDOW_BYTES
    place = _document_boundary(source, is_jsonl, window, start, is_end)
    if place is not None and place <= start + limit:
        return place, True
    if len(window) - start <= limit:
        return (len(window), True) if is_end else None
    if is_jsonl:
        raise CorpusError(f"a line is longer than {limit >> 20} MiB: too long for one JSON document")
    return _cut_inside_document(source, window, start, start + limit), False


def context_bytes(source: Source) -> int:
    """Return how much text `find_boundary` looks at before its start: a character, or all but a byte of a delimiter."""
    return max(4, len(source.delimiter.encode()))


def _document_boundary(source: Source, is_jsonl: bool, window: bytes, start: int, is_end: bool) -> int | None:
    if is_jsonl or source.document == "line":
        return window.find(b"\n", start) + 1 or None
    if source.document == "delimiter":
        return _delimiter_end(source.delimiter.encode(), window, start, is_end)
    if source.document == "paragraph":
        found = _BLANK_LINES.search(window, start)
        # A line of spaces at the window's end may turn out to be one more blank line.
        return found.end() if found and _skip(_SPACES, window, found.end()) < len(window) else None
    return None  # document: file


def _skip(pattern: re.Pattern[bytes], data: bytes, start: int) -> int:
    """Return where a pattern that matches everywhere, if only nothing, ends."""
    found = pattern.match(data, start)
    assert found is not None
    return found.end()


def _delimiter_end(delimiter: bytes, window: bytes, start: int, is_end: bool) -> int | None:
    """Return the end of the first delimiter that overlaps no other: whoever splits the whole file finds it too."""
    size = len(delimiter)
    place = window.find(delimiter, start)
    while 0 <= place <= start + BOUNDARY_WINDOW_BYTES:
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


def split_stretch(source: Source, stretch: Stretch, noticed: Counter[str]) -> Iterator[list[bytes]]:
    """The documents of a stretch, some at a time, so that millions of tiny ones never exist at once.

    Empty documents are left out, except an empty rest of a document that began before the stretch: that still ends it.
    """
    raw = stretch.raw
    if stretch.offset == 0:
        refuse_what_is_not_text(raw, stretch.path)
        raw = _without_byte_order_mark(raw, noticed)
    raw = _as_utf8(source, raw, stretch.path, stretch.offset, noticed)
    if stretch.format == "jsonl":
        yield from _split_jsonl(source, raw, stretch, noticed)
        return
    first, last = None, None
    for documents in _split_text(source, raw, stretch.is_open, stretch.offset == 0):
        if last is not None:
            yield _without_empty(last, last is first and stretch.is_continuation, False, noticed)
        first, last = first or documents, documents
    if last is not None:
        yield _without_empty(last, last is first and stretch.is_continuation, stretch.is_open, noticed)


def _without_empty(documents: list[bytes], has_rest: bool, has_open: bool, noticed: Counter[str]) -> list[bytes]:
    """An empty first document may be the end of another, and an empty last one the beginning of another."""
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
        yield from _split_lines(raw)
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


def _split_lines(raw: bytes) -> Iterator[list[bytes]]:
    start = 0
    while start < len(raw):
        stop = raw.find(b"\n", min(start + SPLIT_BYTES, len(raw) - 1)) + 1 or len(raw)
        window = raw[start:stop]
        lines = window.removesuffix(b"\n").split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines] if b"\r" in window else lines
        start = stop


def _split_at(separator: re.Pattern[bytes], raw: bytes, is_open: bool) -> Iterator[list[bytes]]:
    documents: list[bytes] = []
    start = first = 0
    for found in separator.finditer(raw):
        documents.append(raw[start : found.start()])
        start = found.end()
        if start - first > SPLIT_BYTES:
            yield documents
            documents, first = [], start
    if start < len(raw) or is_open:  # what stands after the last separator, if anything
        documents.append(raw[start:])
    if documents:
        yield documents


def _split_jsonl(source: Source, raw: bytes, stretch: Stretch, noticed: Counter[str]) -> Iterator[list[bytes]]:
    """The text field of every line; a line that has none is an error naming `file:line`, or skipped and counted."""
    before = 0
    for lines in _split_lines(raw):
        documents: list[bytes] = []
        for number, line in enumerate(lines, start=before):
            if not line.strip():
                continue
            try:
                text = _text_of(source, line, noticed)
            except ValueError as problem:
                if source.malformed_lines == "skip":
                    noticed["malformed_lines"] += 1
                    continue
                hint = "Mend the line, or leave such lines out: data.malformed_lines=skip"
                raise CorpusError(f"{stretch.path}:{stretch.first_line() + number}: {problem}. {hint}") from None
            if text:
                documents.append(text)
            else:
                noticed["empty_documents"] += 1
        before += len(lines)
        yield documents


def _outside_strings(line: bytes) -> int:
    return len(line) - sum(found.end() - found.start() - 2 for found in _JSON_STRING.finditer(line))


def _text_of(source: Source, line: bytes, noticed: Counter[str]) -> bytes:
    field_name = source.text_field
    if len(line) > JSON_STRUCTURE_LIMIT_BYTES and _outside_strings(line) > JSON_STRUCTURE_LIMIT_BYTES:
        # As objects of Python, brackets and numbers take some 20 times their bytes.
        raise ValueError(f"over {JSON_STRUCTURE_LIMIT_BYTES >> 20} MiB of brackets and numbers around the text")
    try:
        value = json.loads(line)
    except json.JSONDecodeError as problem:
        raise ValueError(f"not valid JSON ({problem.msg} at character {problem.colno})") from None
    except RecursionError:
        raise ValueError("not valid JSON (nested too deeply)") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__} where an object with the field {field_name!r} was expected")
    if field_name not in value:
        known = ", ".join(sorted(value)[:8]) or "none"
        raise ValueError(f"no field {field_name!r} (fields here: {known}); name the right one: data.text_field=NAME")
    text = value[field_name]
    if not isinstance(text, str):
        raise ValueError(f"field {field_name!r} holds {type(text).__name__}, not a string")
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can spell lone surrogates, which UTF-8 cannot
        if source.invalid_utf8 == "refuse":
            raise ValueError(f"field {field_name!r} has a lone surrogate, which is not valid UTF-8") from None
        text, count = _SURROGATES.subn("\ufffd", text)
        noticed["invalid_utf8"] += count
        return text.encode()


def _without_byte_order_mark(raw: bytes, noticed: Counter[str]) -> bytes:
    if raw.startswith(_BYTE_ORDER_MARK):
        noticed["byte_order_marks"] += 1
        return raw[len(_BYTE_ORDER_MARK) :]
    return raw


def _as_utf8(source: Source, raw: bytes, path: str, offset: int, noticed: Counter[str]) -> bytes:
    if b"\0" in raw:
        noticed["nul_bytes"] += raw.count(b"\0")
    if raw.isascii():
        return raw
    try:
        raw.decode()
        return raw
    except UnicodeDecodeError as problem:
        if source.invalid_utf8 == "refuse":
            where = f"byte {offset + problem.start:,}"
            raise CorpusError(f"{path}: not valid UTF-8 at {where} (0x{raw[problem.start]:02x}).") from None
        text = raw.decode("utf-8", "replace")
        if looks_like_latin1(raw, text):
            noticed["latin1_texts"] += 1
        mended = text.encode()
        noticed["invalid_utf8"] += mended.count(_REPLACEMENT) - raw.count(_REPLACEMENT)
        return mended


def parquet_documents(
    source: Source, values: list[bytes | None], path: str, first_row: int, noticed: Counter[str]
) -> list[bytes]:
    """Rows of a text column as documents."""
    documents: list[bytes] = []
    for number, value in enumerate(values, start=first_row):
        if value:
            documents.append(_as_utf8(source, value, f"{path}, row {number}", 0, noticed))
        else:
            noticed["empty_documents"] += 1
    return documents
