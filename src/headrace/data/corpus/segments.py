"""Segments: a corpus laid out in units of about 8 MiB, known from file sizes alone, before anything is read.

A segment is what order permutes and what workers take from the list of work. A large text file is many segments, cut on
document boundaries where possible; a compressed file, a table or an archive is as many as its size suggests, read front
to back; a parquet file is cut between row groups; small files go together into one segment. Where such a group ends is
decided by the names of its own files, so that one more file in the corpus changes one group and leaves all others
alone.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from headrace.data.corpus.discovery import is_in_folder, iterate_files
from headrace.data.corpus.formats.format import Format, Piece, expected_bytes
from headrace.data.corpus.formats.registry import format_for, format_of
from headrace.data.corpus.remote.looking import look_ahead
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError, NoTextColumnError
from headrace.files import digest


class Kind(StrEnum):
    """How the text of a segment lies in files. Manifests and the order of batches depend on the names."""

    GROUP = "files"
    """Several small files."""
    RANGE = "range"
    """A range of bytes of a text file."""
    STREAM = "stream"
    """A range of the text of a file that can only be read front to back: compressed, a table, an archive."""
    ROWS = "rows"
    """Records of a file that knows where they lie."""


class FileList(Sequence[SourceFile]):
    """Files of a group, held in about 50 bytes and the path each: a million tiny files must fit in memory."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._paths = "\0".join(file.path for file in files)
        self._versions = "\0".join(file.version for file in files) if any(file.is_remote for file in files) else ""
        fields = [(f.root_length, f.size, f.mtime_ns, f.ctime_ns, f.inode) for f in files]
        self._fields = np.array(fields, dtype=np.int64).reshape(len(files), 5)

    def __len__(self) -> int:
        return len(self._fields)

    def __getitem__(self, index: int) -> SourceFile:  # type: ignore[override]
        version = self._versions.split("\0")[index] if self._versions else ""
        return _file(self._paths.split("\0")[index], self._fields[index].tolist(), version)

    def __iter__(self) -> Iterator[SourceFile]:
        if len(self):
            versions = self._versions.split("\0") if self._versions else itertools.repeat("", len(self))
            for path, fields, version in zip(self._paths.split("\0"), self._fields.tolist(), versions, strict=True):
                yield _file(path, fields, version)


def _file(path: str, fields: list[int], version: str) -> SourceFile:
    root_length, size, mtime_ns, ctime_ns, inode = fields
    return SourceFile(path, root_length, size, mtime_ns, ctime_ns, inode, version)


@dataclass(frozen=True, slots=True)
class Segment:
    """One unit of work and of order. `begin` and `end` are nominal: bytes (range, stream) or row groups (rows)."""

    source: int
    kind: Kind
    path: str
    """The file; of a group, its first."""
    ordinal: int
    """Which part of its file this is."""
    nbytes: int
    """Raw bytes, as far as they can be estimated without reading."""
    fingerprint: str
    """Changes whenever one of its files may have changed."""
    begin: int = 0
    end: int = 0
    is_last: bool = True
    """Whether its file ends here."""
    num_files: int = 1
    root_length: int = 0
    """Length of the part of the path that says where the corpus lies."""
    files: Sequence[SourceFile] = ()

    @property
    def is_group(self) -> bool:
        """Whether it holds several files, which are named in its shards."""
        return self.kind == Kind.GROUP

    @property
    def names_files(self) -> bool:
        """Whether its shards name the files that their text is from: several small ones, or members of an archive."""
        return self.is_group or format_of(self.path).is_archive

    @property
    def is_sequential(self) -> bool:
        """Whether its text can only be reached through the segments of the file before it."""
        return self.kind == Kind.STREAM

    @property
    def needs_previous(self) -> bool:
        """Whether the segment before it must be read first."""
        return self.is_sequential and self.ordinal > 0

    def beginning(self, nbytes: int) -> Segment:
        """Return a segment of only the first bytes, if its format can read those alone; else the whole segment."""
        if self.kind == Kind.RANGE and self.end - self.begin > nbytes:
            return replace(self, end=self.begin + nbytes, is_last=False)
        return self


def divide_corpus(
    sources: Sequence[Source],
    skipped: Counter[str] | None = None,
    listed: Sequence[Iterable[SourceFile]] | None = None,
) -> list[Segment]:
    """Divide a corpus into segments. Reads directory entries, parquet footers and how tables begin, nothing else.

    Files that are left out are counted in `skipped`, by reason. A table without the column of the text is one of them
    if it was found in a folder that has other text; one that was named is an error. `listed`: the files of each source,
    if they are known.
    """
    skipped = Counter() if skipped is None else skipped
    segments: list[Segment] = []
    for index, source in enumerate(sources):
        files = iterate_files(source, skipped) if listed is None else listed[index]
        segments += _divide_source(index, source, files, skipped)
    return segments


def _divide_source(index: int, source: Source, files: Iterable[SourceFile], skipped: Counter[str]) -> list[Segment]:
    segments: list[Segment] = []
    group = _Group(index, source)
    problem = CorpusError(f"{source.label}: the corpus is empty: there is no file with any content.")
    for file, format, pieces in look_ahead(functools.partial(_look_at, source), files):
        if format is None or isinstance(pieces, NoTextColumnError):
            assert isinstance(pieces, NoTextColumnError)
            if not is_in_folder(source, file):
                raise pieces
            skipped[f"table(s) without a column {source.text_field!r} (data.text_field=NAME reads another one)"] += 1
            problem = pieces
            continue
        if pieces is not None:
            segments += [*group.take(), *_file_segments(index, source, file, format, pieces)]
            continue
        expected = expected_bytes(file)
        if group.files and file.root != group.files[0].root:  # names within a group are relative to one place
            segments += group.take()
        group.add(file, format, expected)
        if _group_ends(file.name, expected, group.nbytes):
            segments += group.take()
    segments += group.take()
    if not segments:
        raise problem
    return segments


def share_of_segments(segments: Sequence[Segment], number: int, num_shares: int) -> set[int]:
    """Return the segments of one of several builders, spread over the corpus; a compressed file goes to one of them."""
    share: set[int] = set()
    num_units = 0
    for index, segment in enumerate(segments):
        num_units += not segment.needs_previous
        if (num_units - 1) % num_shares == number:
            share.add(index)
    return share


def corpus_hash(segments: Sequence[Segment]) -> str:
    """Hash what order depends on: the segments and their sizes, but not where on the disk they lie."""
    shape = ";".join(f"{s.source},{s.kind},{s.ordinal},{s.nbytes}" for s in segments)
    return digest("corpus-1", shape)[:16]


def _group_ends(name: str, size: int, group_bytes: int) -> bool:
    """Draw whether a file ends its group, with a chance in proportion to its size, from its name alone."""
    scale = current_scale()
    if group_bytes < scale.group_minimum_bytes:
        return False
    chance = int(digest("group-end", name)[:8], 16) / 2**32
    return group_bytes >= scale.segment_bytes or chance < size / scale.group_bytes


class _Group:
    """Small files that are to share a segment."""

    def __init__(self, index: int, source: Source) -> None:
        self._index, self._source = index, source
        self._clear()

    def _clear(self) -> None:
        self.files: list[SourceFile] = []
        self.nbytes = 0
        self._fingerprints: list[str] = []

    def add(self, file: SourceFile, format: Format, nbytes: int) -> None:
        """Add a file of about so many bytes of text."""
        self.files.append(file)
        self.nbytes += nbytes
        self._fingerprints.append(_fingerprint(file, format))

    def take(self) -> Iterator[Segment]:
        """Yield the segment of the files so far, if there are any, and begin anew."""
        if not self.files:
            return
        yield Segment(
            self._index,
            Kind.GROUP,
            self.files[0].path,
            0,
            self.nbytes,
            digest(self._source.reading_hash, *self._fingerprints),
            num_files=len(self.files),
            root_length=self.files[0].root_length,
            files=FileList(self.files),
        )
        self._clear()


def _fingerprint(file: SourceFile, format: Format) -> str:
    """Return text that changes whenever the file, or the way of reading it, may have changed."""
    return f"{file.fingerprint}|{format.mark}" if format.mark else file.fingerprint


def _look_at(
    source: Source, file: SourceFile
) -> tuple[SourceFile, Format, list[Piece] | None] | tuple[SourceFile, None, NoTextColumnError]:
    """Return the format of a file and the pieces that it is divided into; None: it is small, and goes into a group.

    A table without the column of the text has no format here, and the error that says so.
    """
    try:
        format = format_for(source, file)
        is_small = format.is_text and expected_bytes(file) < current_scale().segment_bytes
        return file, format, None if is_small else format.divide(source, file)
    except NoTextColumnError as missing:
        return file, None, missing


def _file_segments(
    index: int, source: Source, file: SourceFile, format: Format, pieces: Sequence[Piece]
) -> Iterator[Segment]:
    kind = Kind.STREAM if format.is_sequential(file) else Kind.RANGE if format.is_text else Kind.ROWS
    for ordinal, piece in enumerate(pieces):
        # The number after the kind is the version of the boundaries: other cuts are other segments.
        place = f"{piece.begin}-{piece.end}"
        fingerprint = digest(source.reading_hash, _fingerprint(file, format), f"{kind} 2", place)
        yield Segment(
            index,
            kind,
            file.path,
            ordinal,
            piece.nbytes,
            fingerprint,
            piece.begin,
            piece.end,
            is_last=ordinal == len(pieces) - 1,
            root_length=file.root_length,
            files=(file,),
        )
