"""Sources, as users name them, and the files that they are made of."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from headrace.data.corpus.datasets.objects import SCHEME, DatasetTable, as_table, find_table, is_dataset
from headrace.data.corpus.remote.addresses import shown, without_secrets
from headrace.data.corpus.weights import Weight
from headrace.errors import UsageError
from headrace.files import digest
from headrace.sizes import Size

COMPRESSED_SUFFIXES = (".gz", ".zst", ".bz2", ".xz")

DocumentKind = Literal["file", "line", "paragraph", "delimiter"]
InvalidUtf8 = Literal["replace", "refuse"]
MalformedLines = Literal["refuse", "skip"]


def _as_tuple(given: Any) -> Any:
    return tuple(part.strip() for part in given.split(",") if part.strip()) if isinstance(given, str) else given


Languages = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class SourceOptions(BaseModel):
    """How the files of a source are read. The `data` section has the same options, for sources without their own."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    document: DocumentKind = "file"
    """What one document is in a text file (.jsonl: each line is one; .parquet, .csv, .tsv: each row)."""
    delimiter: str = ""
    """The text between documents, with document=delimiter."""
    text_field: str = "text"
    """The key (.jsonl, .json) or column (.parquet, .csv, .tsv) that holds the text."""
    invalid_utf8: InvalidUtf8 = "replace"
    """Bytes that are not UTF-8: replace them by U+FFFD and count them, or refuse the file."""
    malformed_lines: MalformedLines = "refuse"
    """Lines of .jsonl (items of .json, rows of .csv) without the text: refuse the file, or skip and count them."""
    as_plain_text: bool = False
    """Read .csv, .tsv, .json and .html files as they are, like source code, instead of the texts in them."""
    max_expansion: int = Field(default=100, ge=1)
    """A compressed file or archive that expands beyond this factor (and 64 MiB) is refused as a decompression bomb."""
    min_document_bytes: Size = None
    """Leave out documents of fewer bytes of UTF-8, such as 200; they are counted."""
    max_document_bytes: Size = Field(default=None, le=1 << 20)
    """Leave out documents of more bytes of UTF-8, such as 100KiB (at most 1MiB); they are counted."""
    languages: Languages = ()
    """Keep only documents in these languages, such as en,de; the others are counted. Needs headrace[language]."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.document == "delimiter") != bool(self.delimiter):
            raise ValueError("data.document=delimiter and data.delimiter=TEXT go together")
        least, most = self.min_document_bytes, self.max_document_bytes
        if least is not None and most is not None and least > most:
            raise ValueError(f"min_document_bytes {least:,} is above max_document_bytes {most:,}: no document is kept")
        return self


class Source(SourceOptions):
    """One corpus, or one part of a mixture.

    >>> Source(path="corpus/*.jsonl.zst", weight=0.7, text_field="content")  # doctest: +ELLIPSIS
    Source(...)
    """

    model_config = ConfigDict(frozen=True)

    path: str | tuple[str, ...]
    """A file, a folder, a glob, or several of them, on this disk or at s3://, gs://, https:// or hf://datasets/; in
    Python also a Hugging Face dataset."""
    name: str = ""
    """What reports call this source; by default its path."""
    weight: Weight | None = None
    """Share of the mixture: a number, or a schedule of numbers such as {0: 0.9, 80%: 0.2}. Give every source one, or
    none: without weights all sources are one corpus."""
    _tables: tuple[DatasetTable | None, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _name_dataset(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Replace a dataset by its name, under which its rows are found as long as a source holds it."""
        if not isinstance(given, dict) or not is_dataset(given.get("path")):
            return validate(given)
        table = as_table(given["path"])
        return validate({**given, "path": table.path})

    def model_post_init(self, _: Any) -> None:
        """Hold the datasets that the paths name."""
        self._tables = tuple(find_table(path) for path in self.paths if path.startswith(SCHEME))

    def __eq__(self, other: object) -> bool:
        """Compare what sources say, not which objects they hold."""
        return isinstance(other, Source) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash((self.path, self.name))

    @field_validator("path")
    @classmethod
    def _without_secrets(cls, given: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """Keep signatures and passwords of web addresses out of what is stored and shown."""
        paths = [given] if isinstance(given, str) else list(given)
        addresses = [shown(path) for path in paths]
        for number, address in enumerate(addresses):
            if address in addresses[:number] and address != paths[number]:
                raise ValueError(f"{address} is given twice, with other queries; what stands after ? is not a name")
        return addresses[0] if isinstance(given, str) else tuple(addresses)

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if not self.paths:
            raise ValueError("names no file, folder or glob")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def label(self) -> str:
        more = len(self.paths) - 1
        return self.name or (f"{self.paths[0]} and {more:,} more" if more else self.paths[0])

    @property
    def filters(self) -> dict[str, Any]:
        """The filters of documents that are set."""
        named = {name: getattr(self, name) for name in ("min_document_bytes", "max_document_bytes", "languages")}
        return {name: value for name, value in named.items() if value}

    @functools.cached_property
    def reading_hash(self) -> str:
        """Hash of how bytes become documents: part of what a cached token depends on."""
        options = self.model_dump(include={"document", "delimiter", "text_field", "invalid_utf8", "malformed_lines"})
        version = "reading-1" if self.document in ("file", "line") else "reading-2"
        return digest(version, repr(sorted(options.items())))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was when the files of the corpus were listed."""

    path: str
    root_length: int
    """Length of the part of the path that says where the corpus lies; the rest names the file within it."""
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    version: str = ""
    """What a store says of the content of a remote file (its ETag, for instance); empty: a file on this disk."""

    @property
    def is_remote(self) -> bool:
        return bool(self.version)

    @property
    def name(self) -> str:
        """The file's name within the corpus: the same wherever the corpus lies."""
        return self.path[self.root_length :]

    @property
    def root(self) -> str:
        return self.path[: self.root_length]

    @property
    def compression(self) -> str:
        """ ".gz", ".zst", ".bz2", ".xz", or "" for none."""
        suffix = suffix_of(self.path)
        return suffix if suffix in COMPRESSED_SUFFIXES else ""

    @property
    def fingerprint(self) -> str:
        """Text that changes whenever the file may have: ctime moves with every write, even if mtime is put back."""
        if self.is_remote:
            return f"{self.path}|{self.size}|{self.version}"
        return f"{self.path}|{self.size}|{self.mtime_ns}|{self.ctime_ns}|{self.inode}"

    def is_as(self, status: os.stat_result) -> bool:
        """Check whether a file is still what it was."""
        return (self.size, self.mtime_ns, self.ctime_ns, self.inode) == (
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino & 0x7FFFFFFFFFFFFFFF,
        )

    @classmethod
    def from_stat(cls, path: str, root_length: int, status: os.stat_result) -> SourceFile:
        return cls(
            path,
            root_length,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino & 0x7FFFFFFFFFFFFFFF,
        )


def as_sources(
    given: str | os.PathLike[str] | Source | dict[str, object] | Sequence[object], *, apart: bool = False
) -> list[Source]:
    """Turn whatever a user may pass as a corpus into sources: a path, a Hugging Face dataset, a
    `Source`, its fields as a dict, or a list.

    Paths given together are one source, which stands where the first of them does; `apart`: each is its own.

    >>> [source.path for source in as_sources(["a.txt", "b.txt", {"path": "c.txt"}])]
    [('a.txt', 'b.txt'), 'c.txt']
    """
    if not isinstance(given, (list, tuple)):
        given = [given]
    if apart:
        given = [{"path": os.fsdecode(item)} if isinstance(item, (str, os.PathLike)) else item for item in given]
    paths = [os.fsdecode(item) for item in given if isinstance(item, (str, os.PathLike))]
    sources: list[Source] = []
    for item in given:
        if isinstance(item, Source):
            sources.append(item)
        elif is_dataset(item):
            sources.append(Source.model_validate({"path": item}))
        elif isinstance(item, (str, os.PathLike)):
            if paths:
                sources.append(Source(path=tuple(paths) if len(paths) > 1 else paths[0]))
                paths = []
        elif isinstance(item, dict):
            sources.append(_source_from_dict(item))
        else:
            raise UsageError(
                f"a source is a path, a Hugging Face dataset, a Source or a dict of its fields,"
                f" not {type(item).__name__}"
            )
    if not sources:
        raise UsageError("no source given: name at least one file, folder or glob")
    weighted = [source.weight is not None for source in sources]
    if any(weighted) and not all(weighted):
        bare = sources[weighted.index(False)]
        raise UsageError(f"source {bare.label!r} has no weight but another source has: give all of them one, or none")
    return sources


def unique_names(sources: Sequence[Source]) -> list[str]:
    """Return what reports call the sources; those of one name are numbered by their place.

    >>> unique_names([Source(path="a"), Source(path="b"), Source(path="c", name="a")])
    ['a (1)', 'b', 'a (3)']
    """
    labels = [source.label for source in sources]
    return [name if labels.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(labels, start=1)]


def _source_from_dict(fields: dict[str, object]) -> Source:
    try:
        return Source.model_validate(fields)
    except ValidationError as problem:
        first = problem.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "source"
        known = ", ".join((*Source.__annotations__, *SourceOptions.model_fields))
        message = first["msg"].removeprefix("Value error, ")
        given = without_secrets(repr(fields))
        raise UsageError(f"source {given}: {key}: {message} (fields of a source: {known})") from None


def standard_library() -> Source:
    """Return the zero-download corpus: the Python standard library's own source and texts on this disk."""
    root = sysconfig.get_paths()["stdlib"]
    name = f"Python {sys.version_info.major}.{sys.version_info.minor} standard library"
    return Source(path=root, name=name, as_plain_text=True)


def suffix_of(name: str, strip_compression: bool = False) -> str:
    """Return the last suffix of a file's name in lower case, if asked the one before a suffix of compression."""
    # Not os.path.splitext, which takes three times as long: this is asked several times of each of a million files.
    stem, _, last = name.rpartition(".")
    suffix = f".{last.lower()}"
    if not stem or stem.endswith("/") or "/" in last:
        return ""
    return suffix_of(stem) if strip_compression and suffix in COMPRESSED_SUFFIXES else suffix
