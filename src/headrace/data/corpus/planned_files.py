"""Files of a corpus, opened only if they have not changed since the corpus was divided into segments.

This is the one place where files on this disk and remote ones differ for those who read them. Both can be read front to
back and at any place (`read_at`), and be told what will be read next (`expect`), which only remote ones make use of.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeAlias, cast

from headrace.data.corpus.remote.remote_file import RemoteFile, open_remote
from headrace.data.corpus.sources import SourceFile
from headrace.errors import CorpusError
from headrace.files import read_at


class LocalFile(io.FileIO):
    """A file on this disk that is open."""

    def expect(self, begin: int, end: int) -> None:
        """Do nothing: the operating system reads ahead."""

    def read_at(self, size: int, place: int) -> bytes:
        """Return bytes at a place; fewer where the file ends."""
        return read_at(cast(BinaryIO, self), size, place)


PlannedFile: TypeAlias = LocalFile | RemoteFile


def open_planned(file: SourceFile) -> PlannedFile:
    """Open a file that must not have changed since it was listed; the caller closes it."""
    if file.is_remote:
        return open_remote(file)
    try:
        handle = LocalFile(file.path, "rb")
    except FileNotFoundError:
        raise CorpusError(f"{file.path}: was removed while the corpus was being read. Run again.") from None
    except OSError as problem:
        raise CorpusError(f"{file.path}: cannot be read ({problem.strerror}).") from None
    try:
        check_unchanged(file, handle)
    except CorpusError:
        handle.close()
        raise
    return handle


@contextmanager
def unchanged(file: SourceFile) -> Iterator[PlannedFile]:
    """Open a file that must not have changed since it was listed, nor change while it is open."""
    with open_planned(file) as handle:
        try:
            yield handle
        except OSError as problem:
            raise CorpusError(f"{file.path}: reading failed ({problem.strerror or problem}).") from None
        check_unchanged(file, handle)


def check_unchanged(file: SourceFile, handle: PlannedFile) -> None:
    """Refuse an open file that has changed since it was listed. Of a remote one, every answer was checked for that."""
    if isinstance(handle, RemoteFile):
        return
    status = os.fstat(handle.fileno())
    if not file.is_as(status):
        grown = f" ({file.size:,} → {status.st_size:,} bytes)" if status.st_size != file.size else ""
        raise CorpusError(
            f"{file.path}: changed while the corpus was being read{grown}. Run again when it is complete."
        )
