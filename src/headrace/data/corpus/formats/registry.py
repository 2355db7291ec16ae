"""The file formats that headrace reads. A new one is a class in a file of its own and one entry in this list."""

from __future__ import annotations

from collections.abc import Callable

from headrace.data.corpus.datasets.objects import SCHEME
from headrace.data.corpus.formats.arrow.dataset import DATASET
from headrace.data.corpus.formats.arrow.files import Arrow
from headrace.data.corpus.formats.docx import Docx
from headrace.data.corpus.formats.format import ChosenFormat, Format
from headrace.data.corpus.formats.html import Html
from headrace.data.corpus.formats.json_array import Json
from headrace.data.corpus.formats.jsonl import JsonLines
from headrace.data.corpus.formats.parquet import Parquet
from headrace.data.corpus.formats.table import Csv, Tsv
from headrace.data.corpus.formats.tar import Tar
from headrace.data.corpus.formats.text import TEXT
from headrace.data.corpus.formats.zip import Zip
from headrace.data.corpus.sources import COMPRESSED_SUFFIXES, Source, SourceFile, suffix_of
from headrace.data.corpus.streams import beginning_of

FORMATS: list[Format] = [TEXT, JsonLines(), Parquet(), Arrow(), Csv(), Tsv(), Json(), Html(), Docx(), Zip(), Tar()]
_BY_SUFFIX = {suffix: format for format in FORMATS for suffix in format.suffixes}


def register(format: Format) -> None:
    """Add a format; it takes over suffixes that another one had."""
    FORMATS.append(format)
    _BY_SUFFIX.update(dict.fromkeys(format.suffixes, format))


def format_of(path: str) -> Format:
    """Return the format of a file, by its suffix before any suffix of compression; of any other file, plain text.
    Rows of a Hugging Face dataset have a format of their own."""
    if path.startswith(SCHEME):
        return DATASET
    return _BY_SUFFIX.get(suffix_of(path, strip_compression=True), TEXT)


def resolve(source: Source, path: str, beginning: Callable[[], bytes]) -> Format:
    """Return how a file of a source is read: by its suffix, and for some suffixes by how it begins."""
    format = format_of(path)
    if format.is_markup and source.as_plain_text:
        return TEXT
    return format.for_beginning(source, path, beginning()) if isinstance(format, ChosenFormat) else format


def format_for(source: Source, file: SourceFile) -> Format:
    """Return how a file on the disk is read."""
    return resolve(source, file.path, lambda: beginning_of(file))


def is_readable(name: str) -> bool:
    """Check whether a file found in a folder has a suffix that headrace reads. Archives are read when they are named:
    a folder often holds one beside what was in it."""
    format = _BY_SUFFIX.get(suffix_of(name, strip_compression=True))
    if format is None or format.is_archive:
        return False
    return format.is_text or suffix_of(name) in format.suffixes


def is_hidden(name: str) -> bool:
    """Check whether a file or folder found in a folder is passed over without a word."""
    return name.startswith(".") or name == "__pycache__"


def why_unread(name: str) -> str:
    """Return the reason, in the plural, why a file found in a folder is not read."""
    if format_of(name).is_archive:
        return "archive(s), read only when named"
    suffix = suffix_of(name)
    return f"file(s) with the suffix {suffix}" if suffix else "file(s) without a suffix"


def shown_formats() -> str:
    """Return the readable formats as an error message lists them."""
    names = ", ".join(format.shown for format in FORMATS)
    return f"{names}, and {'/'.join(COMPRESSED_SUFFIXES)} of the text ones"
