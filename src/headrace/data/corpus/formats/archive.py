"""Archives: files in a file, read front to back, member by member. Nothing is unpacked to the disk.

A member has the format of its own suffix. Its name is only ever a label, so one that leads out of the archive could do
no harm; such members are left out all the same, and counted, like those that headrace cannot read.
"""

from __future__ import annotations

import functools
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from headrace.data.corpus.chunks import Chunk, FilePart
from headrace.data.corpus.formats.format import Format, Piece, TextFormat, divide_evenly
from headrace.data.corpus.planned_files import PlannedFile, check_unchanged, open_planned
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source, SourceFile, suffix_of
from headrace.data.corpus.streams import UNREADABLE, FileStream
from headrace.errors import CorpusError
from headrace.files import digest

PART_OVERHEAD_BYTES = 512
"""What a member costs in memory beside its text, so that a chunk of tiny ones is bounded too."""
MOST_REASONS = 20
"""Reasons for leaving members out that are told apart: the suffixes of a hostile archive may be millions."""
OTHERS = "member(s) of archives of other kinds, left out"
HIDDEN = "hidden"
"""Why files are left out that folders hide too; they are not counted."""


@dataclass(frozen=True)
class Member:
    """A file in an archive."""

    name: str
    size: int
    """Its bytes, as the archive claims."""
    open: Callable[[], BinaryIO]


class Archive(Format):
    """A format of files that hold other files."""

    is_text = False
    is_archive = True

    @abstractmethod
    def members(self, source: Source, file: SourceFile, handle: PlannedFile) -> Iterator[Member]:
        """Yield the members of an open archive, in its order; each is opened, if at all, before the next is taken."""

    @abstractmethod
    def text_bytes(self, source: Source, file: SourceFile) -> int:
        """Estimate the bytes of text in an archive, without reading all of it."""

    def is_sequential(self, file: SourceFile) -> bool:
        return True

    def divide(self, source: Source, file: SourceFile) -> list[Piece]:
        return divide_evenly(self.text_bytes(source, file))

    def open_stream(self, source: Source, file: SourceFile) -> ArchiveStream:
        return ArchiveStream(source, file, self)

    def read(self, source: Source, file: SourceFile, begin: int, end: int, is_last: bool) -> Iterator[Chunk]:
        raise AssertionError("an archive is read front to back")


class ArchiveStream:
    """The text of an archive, in chunks of about 8 MiB that hold several small members or a part of a large one."""

    def __init__(self, source: Source, file: SourceFile, archive: Archive) -> None:
        self._source, self._file, self._archive = source, file, archive
        self._handle = open_planned(file)
        self._parts = self._read()
        self.num_chunks = 0

    def close(self) -> None:
        self._parts.close()
        self._handle.close()

    def chunks(self, until: int | None) -> Iterator[Chunk]:
        while until is None or self.num_chunks < until:
            chunk = self._next_chunk()
            if not chunk.parts:
                return
            self.num_chunks += 1
            yield chunk

    def _next_chunk(self) -> Chunk:
        chunk = Chunk()
        for part in self._parts:
            chunk.add(part)
            if chunk.nbytes + PART_OVERHEAD_BYTES * len(chunk.parts) >= current_scale().segment_bytes:
                break
        return chunk

    def _read(self) -> Generator[FilePart, None, None]:
        """Yield the parts of all readable members, and one without text that counts those that were left out."""
        left_out: Counter[str] = Counter()
        expanded = num_read = 0
        try:
            for member in self._archive.members(self._source, self._file, self._handle):
                reason = why_left_out(member)
                if reason:
                    left_out[reason if reason in left_out or len(left_out) < MOST_REASONS else OTHERS] += 1
                    continue
                with self._open(member, expanded) as stream:
                    yield from stream.parts(until=None)
                    expanded = stream.expanded
                num_read += 1
            check_unchanged(self._file, self._handle)
        except UNREADABLE as problem:
            kind = self._archive.name
            raise CorpusError(f"{self._file.path}: damaged or truncated {kind} archive ({problem}).") from None
        left_out.pop(HIDDEN, None)
        if not num_read:
            found = "; ".join(f"{count:,} {reason}" for reason, count in left_out.items()) or "it is empty"
            raise CorpusError(f"{self._file.path}: no readable file in this archive ({found}).")
        if left_out:
            content = digest("left out", repr(sorted(left_out.items())))
            yield FilePart(self._file.name, content, 0, False, functools.partial(_count, left_out))

    def _open(self, member: Member, expanded: int) -> FileStream:
        """Open a member as a file whose path is that of the archive and its own."""
        path = f"{self._file.path}/{label(member.name)}"
        choose = functools.partial(_choose, self._source, path)
        return FileStream(self._source, replace(self._file, path=path), choose, member.open(), self._handle, expanded)


def why_left_out(member: Member) -> str:
    """Return the reason, in the plural, why a member is not read; empty if it is."""
    from headrace.data.corpus.formats.registry import format_of, is_readable  # which lists archives, too

    parts = member.name.replace("\\", "/").split("/")
    if ".." in parts or re.match(r"[/\\]|[A-Za-z]:", member.name):
        return "member(s) of archives whose names lead out of them, left out"
    if any((part.startswith(".") and part != ".") or part in ("__pycache__", "__MACOSX") for part in parts):
        return HIDDEN
    if not is_readable(parts[-1]) or not format_of(parts[-1]).is_text:
        suffix = suffix_of(parts[-1])
        return f"member(s) of archives with the suffix {suffix}, left out" if suffix[1:].isalnum() else OTHERS
    return "" if member.size else "empty member(s) of archives, left out"


def label(name: str) -> str:
    """Return the name of a member as text that can be shown anywhere.

    >>> label("./a\x1b[2Jb.txt")
    'a?[2Jb.txt'
    """
    return "".join(c if c.isprintable() else "?" for c in name.replace("\\", "/").removeprefix("./"))


def _choose(source: Source, path: str, beginning: bytes) -> TextFormat:
    """Return the format of a member by its suffix and how it begins."""
    from headrace.data.corpus.formats.registry import resolve  # which lists archives, too

    format = resolve(source, path, lambda: beginning)
    assert isinstance(format, TextFormat), f"{path} is read as text, but {format.name} is not"
    return format


def _count(left_out: Counter[str], noticed: Counter[str]) -> Iterator[list[bytes]]:
    noticed.update(left_out)
    yield from ()
