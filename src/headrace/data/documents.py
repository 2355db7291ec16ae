"""Raw bytes become documents: where a document ends, and what is done about bytes, lines and fields that are wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.data.cuts import character_start, first_safe_cut
from headrace.data.sources import Source
from headrace.errors import CorpusError

BOUNDARY_WINDOW_BYTES = 1 << 20
JSON_LINE_LIMIT_BYTES = 32 << 20

_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_REPLACEMENT = "\ufffd".encode()


@dataclass
class Text:
    """Documents of a stretch of a file, and what was noticed while reading it."""

    documents: list[bytes]
    is_open: bool = False
    """Whether the last document goes on beyond this stretch."""
    noticed: Counter[str] = field(default_factory=Counter)


def find_boundary(source: Source, is_jsonl: bool, window: bytes, start: int, is_end: bool) -> tuple[int, bool] | None:
    """The first place at or after `start` where the text may be cut, and whether a document ends there.

    A document boundary within a MiB is preferred; else the first cut that leaves tokens alone, else a fixed distance.
    None: the window must grow before this can be told.
    """
    limit = JSON_LINE_LIMIT_BYTES if is_jsonl else BOUNDARY_WINDOW_BYTES
    place = _document_boundary(source, is_jsonl, window, start)
    if place is not None and place <= start + limit:
        return place, True
    if len(window) - start < limit:
        return (len(window), True) if is_end else None
    if is_jsonl:
        raise CorpusError(f"a line is longer than {limit >> 20} MiB: too long for one JSON document")
    stop = start + limit
    cut = first_safe_cut(window, start, stop)
    return (cut if cut is not None else character_start(window, stop)), False


def _document_boundary(source: Source, is_jsonl: bool, window: bytes, start: int) -> int | None:
    if is_jsonl or source.document == "line":
        return window.find(b"\n", start) + 1 or None
    if source.document == "delimiter":
        delimiter = source.delimiter.encode()
        place = window.find(delimiter, start)
        return place + len(delimiter) if place >= 0 else None
    if source.document == "paragraph":
        found = _BLANK_LINES.search(window, start)
        return found.end() if found and found.end() < len(window) else None
    return None  # document: file


def split_text(source: Source, raw: bytes, path: str, offset: int, is_open: bool) -> Text:
    """Cut a stretch of a text file into its documents. `offset` is where it stands in the (decompressed) file."""
    noticed: Counter[str] = Counter()
    if offset == 0:
        raw = _without_byte_order_mark(raw, path, noticed)
    raw = _as_utf8(source, raw, path, offset, noticed)
    if source.document == "line":
        documents = raw.split(b"\n")
        if b"\r" in raw:
            documents = [line.removesuffix(b"\r") for line in documents]
    elif source.document == "paragraph":
        documents = [paragraph.strip(b"\r\n") for paragraph in _BLANK_LINES.split(raw)]
    elif source.document == "delimiter":
        documents = raw.split(source.delimiter.encode())
    else:
        documents = [raw]
    if not is_open and documents and not documents[-1]:
        documents.pop()  # what stands after the last separator is not a document
    kept = [document for document in documents if document]
    if len(kept) < len(documents):
        noticed["empty_documents"] += len(documents) - len(kept)
    return Text(kept, is_open and bool(documents) and bool(documents[-1]), noticed)


def split_jsonl(source: Source, raw: bytes, path: str, offset: int, first_line: Callable[[], int]) -> Text:
    """The text field of every line; a line that has none is an error naming `file:line`, or skipped and counted."""
    noticed: Counter[str] = Counter()
    if offset == 0:
        raw = _without_byte_order_mark(raw, path, noticed)
    raw = _as_utf8(source, raw, path, offset, noticed)
    documents: list[bytes] = []
    for number, line in enumerate(raw.split(b"\n")):
        if not line.strip():
            continue
        try:
            text = _text_of(line, source.text_field)
        except ValueError as problem:
            if source.malformed_lines == "skip":
                noticed["malformed_lines"] += 1
                continue
            hint = "Mend the line, or set malformed_lines: skip."
            raise CorpusError(f"{path}:{first_line() + number}: {problem}. {hint}") from None
        if text:
            documents.append(text)
        else:
            noticed["empty_documents"] += 1
    return Text(documents, False, noticed)


def _text_of(line: bytes, field_name: str) -> bytes:
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
        raise ValueError(f"no field {field_name!r} (fields here: {known}); set text_field to the right one")
    text = value[field_name]
    if not isinstance(text, str):
        raise ValueError(f"field {field_name!r} holds {type(text).__name__}, not a string")
    return text.encode("utf-8", "replace")  # JSON can spell lone surrogates, which UTF-8 cannot


def _without_byte_order_mark(raw: bytes, path: str, noticed: Counter[str]) -> bytes:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise CorpusError(f"{path}: this is UTF-16 text; headrace reads UTF-8. Convert it: iconv -f UTF-16 -t UTF-8")
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
        mended = raw.decode("utf-8", "replace").encode()
        noticed["invalid_utf8"] += mended.count(_REPLACEMENT) - raw.count(_REPLACEMENT)
        return mended


def parquet_text(source: Source, values: list[bytes | None], path: str, row: int) -> Text:
    """Rows of a text column as documents."""
    noticed: Counter[str] = Counter()
    documents: list[bytes] = []
    for number, value in enumerate(values, start=row):
        if value:
            documents.append(_as_utf8(source, value, f"{path}, row {number}", 0, noticed))
        else:
            noticed["empty_documents"] += 1
    return Text(documents, False, noticed)
