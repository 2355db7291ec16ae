"""Segments: a corpus laid out in units of about 8 MiB, known from file sizes alone, before anything is read.

A segment is what order permutes and what workers take from the list of work. A large text file is many segments, cut on
document boundaries where possible; a compressed file is as many as its size suggests, read front to back; a parquet
file is cut between row groups; small files go together into one segment. Where such a group ends is decided by the
names of its own files, so that one more file in the corpus changes one group and leaves all others alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from headrace.data.corpus.discovery import iterate_files
from headrace.data.corpus.formats.format import expected_bytes
from headrace.data.corpus.formats.registry import format_of
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError
from headrace.files import digest


class Kind(StrEnum):
    """How the text of a segment lies in files. Manifests and the order of batches depend on the names."""

    GROUP = "files"
    """Several small files."""
    RANGE = "range"
    """A range of bytes of a text file."""
    STREAM = "stream"
    """A range of the text of a compressed file, which can only be read front to back."""
    ROWS = "rows"
    """Records of a file that knows where they lie."""


class FileList(Sequence[SourceFile]):
    """Files of a group, held in about 50 bytes and the path each: a million tiny files must fit in memory."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._paths = "\0".join(file.path for file in files)
        fields = [(f.root_length, f.size, f.mtime_ns, f.ctime_ns, f.inode) for f in files]
        self._fields = np.array(fields, dtype=np.int64).reshape(len(files), 5)

    def __len__(self) -> int:
        return len(self._fields)

    def __getitem__(self, index: int) -> SourceFile:  # type: ignore[override]
        return SourceFile(self._paths.split("\0")[index], *map(int, self._fields[index]))

    def __iter__(self) -> Iterator[SourceFile]:
        if len(self):
            for path, fields in zip(self._paths.split("\0"), self._fields.tolist(), strict=True):
                yield SourceFile(path, *fields)


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


def divide_corpus(sources: Sequence[Source], skipped: Counter[str] | None = None) -> list[Segment]:
    """Divide a corpus into segments. Reads directory entries and parquet footers, nothing else.

    Files that are left out are counted in `skipped`, by reason.
    """
    skipped = Counter() if skipped is None else skipped
    segments: list[Segment] = []
    for index, source in enumerate(sources):
        before = len(segments)
        group: list[SourceFile] = []
        group_bytes = 0
        for file in iterate_files(source, skipped):
            expected = expected_bytes(file)
            if not format_of(file.path).is_text or expected >= current_scale().segment_bytes:
                if group:
                    segments.append(_group_segment(index, source, group, group_bytes))
                    group, group_bytes = [], 0
                segments.extend(_file_segments(index, source, file))
                continue
            if group and file.root != group[0].root:  # names within a group are relative to one place
                segments.append(_group_segment(index, source, group, group_bytes))
                group, group_bytes = [], 0
            group.append(file)
            group_bytes += expected
            if _group_ends(file.name, expected, group_bytes):
                segments.append(_group_segment(index, source, group, group_bytes))
                group, group_bytes = [], 0
        if group:
            segments.append(_group_segment(index, source, group, group_bytes))
        if len(segments) == before:
            raise CorpusError(f"{source.label}: the corpus is empty: there is no file with any content.")
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


def _group_segment(index: int, source: Source, files: list[SourceFile], nbytes: int) -> Segment:
    fingerprint = digest(source.reading_hash, *(file.fingerprint for file in files))
    return Segment(
        index,
        Kind.GROUP,
        files[0].path,
        0,
        nbytes,
        fingerprint,
        num_files=len(files),
        root_length=files[0].root_length,
        files=FileList(files),
    )


def _file_segments(index: int, source: Source, file: SourceFile) -> Iterator[Segment]:
    format = format_of(file.path)
    kind = Kind.ROWS if not format.is_text else Kind.STREAM if file.compression else Kind.RANGE
    pieces = format.divide(source, file)
    for ordinal, piece in enumerate(pieces):
        # The number after the kind is the version of the boundaries: other cuts are other segments.
        fingerprint = digest(source.reading_hash, file.fingerprint, f"{kind} 2", f"{piece.begin}-{piece.end}")
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
