"""Whole-file formats: the text is extracted from a file at once, and then split like plain text."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator

from headrace.data.corpus.chunks import TextRange
from headrace.data.corpus.formats.format import Piece, TextFormat, expected_bytes
from headrace.data.corpus.formats.text import TEXT
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError

FILE_LIMIT_BYTES = 32 << 20
"""The largest file that is read whole, and the most text that is taken from one."""


class WholeFile(TextFormat):
    """A format whose files are read whole, at most 32 MiB each, because their text cannot be told from a part."""

    @abstractmethod
    def extract(self, source: Source, text: TextRange, noticed: Counter[str]) -> bytes:
        """Return the text of a whole file as UTF-8."""

    def divide(self, source: Source, file: SourceFile) -> list[Piece]:
        if file.size > FILE_LIMIT_BYTES:
            raise CorpusError(f"{file.path}: {self._too_long()}.")
        total = expected_bytes(file)
        return [Piece(0, total, total)]

    def find_boundary(self, source: Source, window: bytes, start: int, is_end: bool) -> tuple[int, bool] | None:
        """Find the end of the file."""
        if len(window) > FILE_LIMIT_BYTES:
            raise CorpusError(self._too_long())
        return (len(window), True) if is_end else None

    def documents(self, source: Source, text: TextRange, noticed: Counter[str]) -> Iterator[list[bytes]]:
        yield from self.split(source, text, self.extract(source, text, noticed), noticed)

    def split(self, source: Source, text: TextRange, raw: bytes, noticed: Counter[str]) -> Iterator[list[bytes]]:
        if raw:
            yield from TEXT.split(source, text, raw, noticed)
        else:
            noticed["empty_documents"] += 1

    def _too_long(self) -> str:
        return (
            f"{self.name} files are read whole, and this one has more than {FILE_LIMIT_BYTES >> 20} MiB: extract its"
            " text into a .txt file first"
        )
