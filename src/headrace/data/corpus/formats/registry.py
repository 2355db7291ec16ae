"""The file formats that headrace reads. A new one is a class in a file of its own and one entry in this list."""

from __future__ import annotations

from headrace.data.corpus.formats.format import Format
from headrace.data.corpus.formats.jsonl import JsonLines
from headrace.data.corpus.formats.parquet import Parquet
from headrace.data.corpus.formats.text import PlainText
from headrace.data.corpus.sources import COMPRESSED_SUFFIXES, suffix_of

TEXT = PlainText()
"""The format of a file that the user names explicitly and whose suffix belongs to no format."""
FORMATS: list[Format] = [TEXT, JsonLines(), Parquet()]
_BY_SUFFIX = {suffix: format for format in FORMATS for suffix in format.suffixes}


def register(format: Format) -> None:
    """Add a format; it takes over suffixes that another one had."""
    FORMATS.append(format)
    _BY_SUFFIX.update(dict.fromkeys(format.suffixes, format))


def format_of(path: str) -> Format:
    """Return the format of a file, by its suffix before any suffix of compression."""
    return _BY_SUFFIX.get(suffix_of(path, strip_compression=True), TEXT)


def is_readable(name: str) -> bool:
    """Check whether a file found in a folder has a suffix that headrace reads."""
    format = _BY_SUFFIX.get(suffix_of(name, strip_compression=True))
    return format is not None and (format.is_text or suffix_of(name) in format.suffixes)


def shown_formats() -> str:
    """Return the readable formats as an error message lists them."""
    names = ", ".join(format.shown for format in FORMATS)
    return f"{names}, and {'/'.join(COMPRESSED_SUFFIXES)} of the text ones"
