"""The plan of a corpus: segments of about 8 MiB, known from file sizes alone, before anything is read.

A segment is what order permutes and what workers take from the list of work. A large text file is many segments, cut on
document boundaries where possible; a compressed file is as many as its size suggests, read front to back; a parquet
file is cut between row groups; small files go together into one segment. Where such a group ends is decided by the
names of its own files, so that one more file in the corpus changes one group and leaves all others alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from headrace.data.corpus.discovery import iterate_files
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError
from headrace.files import digest

SEGMENT_BYTES = 8 << 20
GROUP_BYTES = 4 << 20
GROUP_MINIMUM_BYTES = 1 << 20
ASSUMED_EXPANSION = 4

Kind = Literal["files", "range", "stream", "rows"]


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
    """Raw bytes, as far as they can be told without reading."""
    fingerprint: str
    """Changes whenever one of its files may have changed."""
    begin: int = 0
    end: int = 0
    is_last: bool = True
    """Whether its file ends here."""
    num_files: int = 1
    root_length: int = 0
    """How much of the path is where the corpus lies."""
    files: Sequence[SourceFile] = ()


def plan_segments(sources: Sequence[Source], skipped: Counter[str] | None = None) -> list[Segment]:
    """Lay out a corpus. Reads directory entries and parquet footers, nothing else.

    Files that are left out are counted in `skipped`, by reason.
    """
    skipped = Counter() if skipped is None else skipped
    segments: list[Segment] = []
    for index, source in enumerate(sources):
        before = len(segments)
        group: list[SourceFile] = []
        group_bytes = 0
        for file in iterate_files(source, skipped):
            expected = file.size * (ASSUMED_EXPANSION if file.compression else 1)
            if file.format == "parquet" or expected >= SEGMENT_BYTES:
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
    """The segments of one of so many builders, spread over the corpus; a compressed file is read by one of them."""
    share: set[int] = set()
    num_units = 0
    for index, segment in enumerate(segments):
        if segment.kind != "stream" or segment.ordinal == 0:
            num_units += 1
        if (num_units - 1) % num_shares == number:
            share.add(index)
    return share


def corpus_hash(segments: Sequence[Segment]) -> str:
    """Identifies what order depends on: the segments and their sizes, but not where on the disk they lie."""
    shape = ";".join(f"{s.source},{s.kind},{s.ordinal},{s.nbytes}" for s in segments)
    return digest("corpus-1", shape)[:16]


def _group_ends(name: str, size: int, group_bytes: int) -> bool:
    """Content-defined: a file ends its group with a chance in proportion to its size, drawn from its name."""
    if group_bytes < GROUP_MINIMUM_BYTES:
        return False
    chance = int(digest("group-end", name)[:8], 16) / 2**32
    return group_bytes >= SEGMENT_BYTES or chance < size / GROUP_BYTES


def _group_segment(index: int, source: Source, files: list[SourceFile], nbytes: int) -> Segment:
    fingerprint = digest(source.reading_hash, *(file.fingerprint for file in files))
    return Segment(
        index,
        "files",
        files[0].path,
        0,
        nbytes,
        fingerprint,
        num_files=len(files),
        root_length=files[0].root_length,
        files=FileList(files),
    )


def _file_segments(index: int, source: Source, file: SourceFile) -> Iterator[Segment]:
    kind: Kind = "rows" if file.format == "parquet" else "stream" if file.compression else "range"
    pieces = _row_group_pieces(source, file) if kind == "rows" else _byte_pieces(file)
    for ordinal, (begin, end, nbytes) in enumerate(pieces):
        # The number after the kind is the version of `find_boundary`: other cuts are other segments.
        fingerprint = digest(source.reading_hash, file.fingerprint, f"{kind} 2", f"{begin}-{end}")
        is_last = ordinal == len(pieces) - 1
        yield Segment(
            index, kind, file.path, ordinal, nbytes, fingerprint, begin, end, is_last, 1, file.root_length, (file,)
        )


def _byte_pieces(file: SourceFile) -> list[tuple[int, int, int]]:
    total = file.size * (ASSUMED_EXPANSION if file.compression else 1)
    count = max(1, round(total / SEGMENT_BYTES))
    bounds = [number * SEGMENT_BYTES for number in range(count)] + [total]
    return [(begin, end, end - begin) for begin, end in pairwise(bounds)]


def _row_group_pieces(source: Source, file: SourceFile) -> list[tuple[int, int, int]]:
    from headrace.data.corpus.formats.parquet import row_group_bytes

    pieces: list[tuple[int, int, int]] = []
    begin = nbytes = 0
    sizes = row_group_bytes(file.path, source.text_field)
    for number, size in enumerate(sizes, start=1):
        nbytes += size
        if nbytes >= SEGMENT_BYTES or number == len(sizes):
            pieces.append((begin, number, nbytes))
            begin, nbytes = number, 0
    return pieces
