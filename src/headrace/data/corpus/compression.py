"""Compressed text files, which can only be read front to back."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from headrace.data.corpus.chunks import FilePart
from headrace.data.corpus.expansion import check_expansion
from headrace.data.corpus.formats.format import TextFormat, TextRange
from headrace.data.corpus.planned_files import check_unchanged, open_planned
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError


class CompressedFile:
    """A compressed text file, read front to back in chunks that end on boundaries near multiples of 8 MiB."""

    def __init__(self, source: Source, file: SourceFile, format: TextFormat) -> None:
        self._source = source
        self._file = file
        self._format = format
        self._raw = open_planned(file)
        self._stream = _DECOMPRESSORS[file.compression](self._raw)
        self._pending = b""
        self._position = 0
        self._line = 1
        self._is_open = False
        self._at_end = False
        self.num_chunks = 0

    def __enter__(self) -> CompressedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._raw.close()

    def parts(self, until: int | None) -> Iterator[FilePart]:
        """Yield the chunks up to number `until` (None: to the end of the file)."""
        while (until is None or self.num_chunks < until) and not (self._at_end and not self._pending):
            offset, line, is_continuation = self._position, self._line, self._is_open
            raw, ends_document = self._next_raw()
            if not raw:
                break
            self._is_open = not ends_document
            first_line = functools.partial(int, line)
            text = TextRange(raw, self._file.path, offset, is_continuation, self._is_open, first_line)
            yield self._format.part(self._source, self._file, text)

    def _next_raw(self) -> tuple[bytes, bool]:
        """Return the bytes of the next chunk, and whether a document ends with them."""
        scale = current_scale()
        target = max((self.num_chunks + 1) * scale.segment_bytes - self._position, 1)
        reach = target + scale.boundary_window_bytes
        found = None
        while found is None:
            self._fill(reach)
            if len(self._pending) <= target and self._at_end:
                found = (len(self._pending), True)
                break
            try:
                found = self._format.find_boundary(self._source, self._pending, target, self._at_end)
            except CorpusError as problem:
                line = self._line + self._pending.count(b"\n", 0, target)
                raise CorpusError(f"{self._file.path}:{line}: {problem}.") from None
            reach *= 2
        cut, is_hard = found
        raw, self._pending = self._pending[:cut], self._pending[cut:]
        self._position += cut
        self._line += raw.count(b"\n")
        self.num_chunks += 1
        return raw, is_hard

    def _fill(self, nbytes: int) -> None:
        """Decompress until this many bytes are pending, or the file ends."""
        parts = [self._pending]
        have = len(self._pending)
        while have < nbytes and not self._at_end:
            block = self._read_block()
            if not block:
                self._at_end = True
                check_unchanged(self._file, self._raw)
            parts.append(block)
            have += len(block)
            check_expansion(self._source, self._file, self._position + have)
        self._pending = b"".join(parts)

    def _read_block(self) -> bytes:
        try:
            return self._stream.read(1 << 20)
        except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as problem:
            raise CorpusError(
                f"{self._file.path}: damaged or truncated {self._file.compression} file"
                f" (after {self._position + len(self._pending):,} bytes of text: {problem})."
            ) from None


def _zstandard(raw: BinaryIO) -> BinaryIO:
    """Decompress with pyarrow, which notices a truncated file; python-zstandard's reader ends it in silence."""
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")  # type: ignore[no-any-return]


_DECOMPRESSORS: dict[str, Callable[[BinaryIO], BinaryIO | io.BufferedIOBase]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstandard,
}
