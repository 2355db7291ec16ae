"""Chunks: text on its way from files to the tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# What a document costs in memory beside its text, so that a chunk of tiny ones is bounded too.
DOCUMENT_OVERHEAD_BYTES = 40


@dataclass(frozen=True)
class TextRange:
    """Consecutive bytes of a text file."""

    raw: bytes
    path: str
    offset: int = 0
    """Offset of its first byte in the (decompressed) file."""
    is_continuation: bool = False
    """Whether it begins in the middle of a document."""
    is_open: bool = False
    """Whether its last document continues after the range."""
    first_line: Callable[[], int] = lambda: 1
    """Returns the number of its first line; only called for error messages."""
    is_last: bool = True
    """Whether the file ends with it."""


@dataclass(frozen=True)
class FilePart:
    """One file's part of a chunk. Its documents are split off when they are asked for."""

    name: str
    digest: str
    """Hash of the raw bytes and of the way they are read."""
    nbytes: int
    is_open: bool
    """Whether its last document continues in the next chunk."""
    documents: Callable[[Counter[str]], Iterator[list[bytes]]]
    """Yields the documents, some at a time; counts what it notices on the way."""
    is_continuation: bool = False
    """Whether its first document began in the chunk before."""


@dataclass
class Chunk:
    """Text that is tokenised and stored together: some 8 to 16 MiB."""

    parts: list[FilePart] = field(default_factory=list)
    nbytes: int = 0

    def add(self, part: FilePart) -> None:
        """Append one file's part."""
        self.parts.append(part)
        self.nbytes += part.nbytes
