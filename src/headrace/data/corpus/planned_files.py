"""Files of a corpus, opened only if they have not changed since the corpus was divided into segments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from headrace.data.corpus.sources import SourceFile
from headrace.errors import CorpusError


def open_planned(file: SourceFile) -> BinaryIO:
    """Open a file that must not have changed since it was listed; the caller closes it."""
    try:
        handle = open(file.path, "rb", buffering=0)  # noqa: SIM115 - whole blocks are read
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
def unchanged(file: SourceFile) -> Iterator[BinaryIO]:
    """Open a file that must not have changed since it was listed, nor change while it is open."""
    with open_planned(file) as handle:
        try:
            yield handle
        except OSError as problem:
            raise CorpusError(f"{file.path}: reading failed ({problem.strerror or problem}).") from None
        check_unchanged(file, handle)


def check_unchanged(file: SourceFile, handle: BinaryIO) -> None:
    """Refuse an open file that has changed since it was listed."""
    status = os.fstat(handle.fileno())
    if not file.is_as(status):
        grown = f" ({file.size:,} → {status.st_size:,} bytes)" if status.st_size != file.size else ""
        raise CorpusError(
            f"{file.path}: changed while the corpus was being read{grown}. Run again when it is complete."
        )
