"""Tar archives, compressed or not."""

from __future__ import annotations

import functools
import tarfile
from collections.abc import Iterator
from io import BufferedIOBase
from typing import IO, BinaryIO, cast

from headrace.data.corpus.expansion import check_expansion, expansion_limit
from headrace.data.corpus.formats.archive import Archive, Member
from headrace.data.corpus.formats.format import ASSUMED_EXPANSION
from headrace.data.corpus.planned_files import PlannedFile
from headrace.data.corpus.sources import Source, SourceFile, suffix_of
from headrace.data.corpus.streams import decompressed

HEADER_LIMIT_BYTES = 1 << 20
"""The longest extended header that is read: it holds a name, and `tarfile` reads it whole."""
_SHORT_SUFFIXES = {".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz", ".tzst": ".zst"}
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK)  # fmt: skip


class Tar(Archive):
    """Tar files. A member is found by reading all before it."""

    name = "tar"
    suffixes = frozenset([".tar", *_SHORT_SUFFIXES])
    shown = ".tar"

    def text_bytes(self, source: Source, file: SourceFile) -> int:
        expected = file.size * (ASSUMED_EXPANSION if _compression(file) else 1)
        return min(expected, expansion_limit(source, file))

    def members(self, source: Source, file: SourceFile, handle: PlannedFile) -> Iterator[Member]:
        stream = cast(IO[bytes], _Counted(source, file, decompressed(handle, _compression(file))))
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Info, bufsize=64 << 10) as archive:
            for info in archive:
                archive.members = []  # type: ignore[attr-defined]  # it keeps them all: there may be millions
                if info.isreg() and not info.issparse():
                    yield Member(info.name, info.size, functools.partial(_open, archive, info))


def _compression(file: SourceFile) -> str:
    return _SHORT_SUFFIXES.get(suffix_of(file.path), file.compression)


def _open(archive: tarfile.TarFile, info: tarfile.TarInfo) -> BinaryIO:
    return cast(BinaryIO, archive.extractfile(info))


class _Counted:
    """The bytes of an archive, refused once they are too many for its size: also those of members that are left out."""

    def __init__(self, source: Source, file: SourceFile, stream: BinaryIO | BufferedIOBase) -> None:
        self._source, self._file, self._stream = source, file, stream
        self._total = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._total += len(data)
        check_expansion(self._source, self._file, self._total)
        return data


class _Info(tarfile.TarInfo):
    """The header of a member. `tarfile` takes one that is damaged or cut off for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Info:
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the mark of the end; its stub lacks it
            raise
        except tarfile.HeaderError as problem:
            raise tarfile.ReadError(f"no end mark: {problem}") from None
        if info.type in _HEADERS and info.size > HEADER_LIMIT_BYTES:
            raise tarfile.ReadError(f"a header of {info.size:,} bytes")
        return info
