"""Zip archives, with members that are stored or deflated."""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Iterator
from typing import IO, BinaryIO, cast

from headrace.data.corpus.expansion import expansion_limit
from headrace.data.corpus.formats.archive import Archive, Member, label, why_left_out
from headrace.data.corpus.planned_files import PlannedFile, open_planned
from headrace.data.corpus.sources import Source, SourceFile
from headrace.data.corpus.streams import UNREADABLE
from headrace.errors import CorpusError

DIRECTORY_LIMIT_BYTES = 8 << 20
"""The largest list of members that is read: as objects of Python, they take some ten times their bytes."""
_ENCRYPTED = 1
_METHODS = {9: "deflate64", zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma", 93: "zstd", 95: "xz"}


class Zip(Archive):
    """Zip files. The list of members stands at the end, so that their sizes are known before they are read."""

    name = "zip"
    suffixes = frozenset([".zip"])
    shown = ".zip"

    def text_bytes(self, source: Source, file: SourceFile) -> int:
        with open_planned(file) as handle:
            try:
                claimed = sum(m.size for m in self.members(source, file, handle) if not why_left_out(m))
            except UNREADABLE as problem:
                raise CorpusError(f"{file.path}: damaged or truncated zip archive ({problem}).") from None
        return min(claimed, expansion_limit(source, file))

    def members(self, source: Source, file: SourceFile, handle: PlannedFile) -> Iterator[Member]:
        with zipfile.ZipFile(cast(IO[bytes], _Modest(file.path, handle))) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield Member(info.filename, info.file_size, functools.partial(_open, archive, info, file.path))


def _open(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: str) -> BinaryIO:
    """Open a member, unless it is encrypted or compressed in a way that cannot be undone in bounded memory."""
    place = f"{path}/{label(info.filename)}"
    if info.flag_bits & _ENCRYPTED:
        raise CorpusError(f"{place}: encrypted. Unpack the archive with its password, and name the folder.")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        kind = _METHODS.get(info.compress_type, f"method {info.compress_type}")
        raise CorpusError(f"{place}: compressed with {kind}; headrace reads deflate. Unpack it, and name the folder.")
    return cast(BinaryIO, archive.open(info))


class _Modest:
    """An open file that refuses to be read by more than a few megabytes at once: `zipfile` reads the list of members
    whole, however long the archive claims it to be."""

    def __init__(self, path: str, handle: PlannedFile) -> None:
        self._path, self._handle = path, handle

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._handle.seek(offset, whence)

    def tell(self) -> int:
        return self._handle.tell()

    def read(self, size: int = -1) -> bytes:
        if size > DIRECTORY_LIMIT_BYTES:
            raise CorpusError(
                f"{self._path}: has too many members for a zip archive to be read from. Unpack it, and name the folder;"
                " or pack it as .tar."
            )
        return self._handle.read(size)
