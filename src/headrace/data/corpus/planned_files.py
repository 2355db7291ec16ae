"""Files of a corpus, which must still be what they were when it was planned, and their parts."""

from __future__ import annotations

import functools
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from headrace.data.corpus.documents import Stretch, split_stretch
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError


@dataclass(frozen=True)
class Member:
    """A file's part of a chunk. Its documents are split off when they are asked for."""

    name: str
    digest: str
    """Hash of the raw bytes and of the way they are read."""
    is_open: bool
    """Whether its last document goes on in the next chunk."""
    documents: Callable[[Counter[str]], Iterator[list[bytes]]]
    """The documents, some at a time; what is noticed on the way is counted."""


def make_member(source: Source, file: SourceFile, stretch: Stretch) -> Member:
    """Of a stretch of a text file."""
    how = f"{source.reading_hash} {stretch.format} {stretch.is_continuation} {stretch.is_open}"
    content = hashlib.blake2b(how.encode(), digest_size=20)
    content.update(stretch.raw)
    split = functools.partial(split_stretch, source, stretch)
    return Member(file.name, content.hexdigest(), stretch.is_open, split)


def open_planned(file: SourceFile) -> BinaryIO:
    """A file that must be the one that was planned; the caller closes it."""
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
    """Open a file that must be, before and after, the one that was planned."""
    with open_planned(file) as handle:
        try:
            yield handle
        except OSError as problem:
            raise CorpusError(f"{file.path}: reading failed ({problem.strerror or problem}).") from None
        check_unchanged(file, handle)


def check_unchanged(file: SourceFile, handle: BinaryIO) -> None:
    """An open file must still be the one that was planned."""
    status = os.fstat(handle.fileno())
    if not file.is_as(status):
        grown = f" ({file.size:,} → {status.st_size:,} bytes)" if status.st_size != file.size else ""
        raise CorpusError(
            f"{file.path}: changed while the corpus was being read{grown}. Run again when it is complete."
        )
