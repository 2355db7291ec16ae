"""JSON lines: every line is an object, and one of its fields a document."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

from headrace.data.corpus.chunks import TextRange
from headrace.data.corpus.formats.format import TextFormat
from headrace.data.corpus.formats.text import split_lines
from headrace.data.corpus.sources import Source
from headrace.errors import CorpusError

LINE_LIMIT_BYTES = 32 << 20
STRUCTURE_LIMIT_BYTES = 4 << 20

STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
"""A string of JSON, as a pattern. One that is never closed goes on to the end: to look for its end from every quote in
it would take the square of its length."""
_STRING = re.compile(STRING, re.DOTALL)
_SURROGATES = re.compile("[\ud800-\udfff]")


class JsonLines(TextFormat):
    """Lines of JSON."""

    name = "jsonl"
    suffixes = frozenset([".jsonl", ".ndjson"])
    shown = ".jsonl"

    def find_boundary(self, source: Source, window: bytes, start: int, is_end: bool) -> tuple[int, bool] | None:
        """Find the end of a line; no document continues in another segment."""
        place = window.find(b"\n", start) + 1
        if 0 < place <= start + LINE_LIMIT_BYTES:
            return place, True
        if len(window) - start <= LINE_LIMIT_BYTES:
            return (len(window), True) if is_end else None
        raise CorpusError(f"a line is longer than {LINE_LIMIT_BYTES >> 20} MiB: too long for one JSON document")

    def split(self, source: Source, text: TextRange, raw: bytes, noticed: Counter[str]) -> Iterator[list[bytes]]:
        """Yield the text field of every line; a line that has none is an error naming `file:line`, or is skipped and
        counted."""
        before = 0
        for lines in split_lines(raw):
            documents: list[bytes] = []
            for number, line in enumerate(lines, start=before):
                if not line.strip():
                    continue
                try:
                    document = text_of(source, line, noticed)
                except ValueError as problem:
                    if source.malformed_lines == "skip":
                        noticed["malformed_lines"] += 1
                        continue
                    hint = "Mend the line, or leave such lines out: data.malformed_lines=skip"
                    raise CorpusError(f"{text.path}:{text.first_line() + number}: {problem}. {hint}") from None
                if document:
                    documents.append(document)
                else:
                    noticed["empty_documents"] += 1
            before += len(lines)
            yield documents


def _outside_strings(line: bytes) -> int:
    """Count the bytes of a line that are not inside a string."""
    return len(line) - sum(found.end() - found.start() - 2 for found in _STRING.finditer(line))


def text_of(source: Source, raw: bytes, noticed: Counter[str], allows_string: bool = False) -> bytes:
    """Return the text in the field of a JSON object, or (`allows_string`) a JSON string itself, as UTF-8.

    ValueError: there is none, or more structure around it than fits into memory.
    """
    if len(raw) > STRUCTURE_LIMIT_BYTES and _outside_strings(raw) > STRUCTURE_LIMIT_BYTES:
        # As objects of Python, brackets and numbers take some 20 times their bytes.
        raise ValueError(f"over {STRUCTURE_LIMIT_BYTES >> 20} MiB of brackets and numbers around the text")
    try:
        value = json.loads(raw)
    except json.JSONDecodeError as problem:
        raise ValueError(f"not valid JSON ({problem.msg} at character {problem.colno})") from None
    except RecursionError:
        raise ValueError("not valid JSON (nested too deeply)") from None
    text = value if allows_string and isinstance(value, str) else _field(source.text_field, value)
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can spell lone surrogates, which UTF-8 cannot
        if source.invalid_utf8 == "refuse":
            raise ValueError("the text has a lone surrogate, which is not valid UTF-8") from None
        text, count = _SURROGATES.subn("\ufffd", text)
        noticed["invalid_utf8"] += count
        return text.encode()


def _field(name: str, value: object) -> str:
    """Return a field of a JSON object that holds a string."""
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__} where an object with the field {name!r} was expected")
    if name not in value:
        known = ", ".join(sorted(value)[:8]) or "none"
        raise ValueError(f"no field {name!r} (fields here: {known}); name the right one: data.text_field=NAME")
    text = value[name]
    if not isinstance(text, str):
        raise ValueError(f"field {name!r} holds {type(text).__name__}, not a string")
    return text
