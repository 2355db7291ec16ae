"""Files that can only be read front to back: compressed ones, tables, and files inside archives."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from headrace.data.corpus.chunks import Chunk, FilePart, TextRange
from headrace.data.corpus.expansion import check_expansion
from headrace.data.corpus.planned_files import PlannedFile, check_unchanged, open_planned
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError

if TYPE_CHECKING:
    from headrace.data.corpus.formats.format import TextFormat

BEGINNING_BYTES = 64 << 10
"""As much of a file as its format may be chosen by."""
UNREADABLE = (
    EOFError,
    OSError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
)
"""What decompressors and readers of archives raise for files that are damaged or truncated."""


class SequentialFile(Protocol):
    """A file that yields its text in chunks, front to back."""

    num_chunks: int
    """Chunks that have been read so far."""

    def chunks(self, until: int | None) -> Iterator[Chunk]:
        """Yield the chunks up to number `until` (None: to the end of the file)."""

    def close(self) -> None:
        """Close the file."""


class FileStream:
    """A text file, read front to back in parts that end on boundaries near multiples of 8 MiB.

    `choose` returns its format by its first 64 KiB. A file inside an archive comes with its `content`, the open
    archive as `handle`, and the bytes that the archive has expanded to `before` it.
    """

    def __init__(
        self,
        source: Source,
        file: SourceFile,
        choose: Callable[[bytes], TextFormat],
        content: BinaryIO | None = None,
        handle: PlannedFile | None = None,
        before: int = 0,
    ) -> None:
        self._source = source
        self._file = file
        self._raw = open_planned(file) if handle is None else handle
        self._owned = [self._raw] if handle is None else []
        self._stream = decompressed(self._raw if content is None else content, file.compression)
        self._before = before
        self._pending = b""
        self._position = 0
        self._line = 1
        self._is_open = False
        self._at_end = False
        self.num_chunks = 0
        try:
            self._fill(BEGINNING_BYTES)
            self._format = choose(self._pending[:BEGINNING_BYTES])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> FileStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        for handle in self._owned:
            handle.close()

    @property
    def expanded(self) -> int:
        """Bytes that the file, or the archive up to its end, has expanded to so far."""
        return self._before + self._position + len(self._pending)

    def chunks(self, until: int | None) -> Iterator[Chunk]:
        for part in self.parts(until):
            chunk = Chunk()
            chunk.add(part)
            yield chunk

    def parts(self, until: int | None) -> Iterator[FilePart]:
        """Yield the parts up to number `until` (None: to the end of the file)."""
        while (until is None or self.num_chunks < until) and not (self._at_end and not self._pending):
            offset, line, is_continuation = self._position, self._line, self._is_open
            raw, ends_document = self._next_raw()
            if not raw:
                break
            self._is_open = not ends_document
            first_line = functools.partial(int, line)
            if not self._pending:
                self._fill(1)  # finds out whether this was the end
            is_last = self._at_end and not self._pending
            text = TextRange(raw, self._file.path, offset, is_continuation, self._is_open, first_line, is_last)
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
            reach = 2 * max(reach, len(self._pending))
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
            check_expansion(self._source, self._file, self._before + self._position + have)
        self._pending = b"".join(parts)

    def _read_block(self) -> bytes:
        try:
            return self._stream.read(1 << 20)
        except UNREADABLE as problem:
            raise CorpusError(
                f"{self._file.path}: damaged or truncated {self._file.compression or 'data'} file"
                f" (after {self._position + len(self._pending):,} bytes of text: {problem})."
            ) from None


def beginning_of(file: SourceFile) -> bytes:
    """Return the first 64 KiB of a file, decompressed."""
    with open_planned(file) as raw, decompressed(raw, file.compression) as stream:
        try:
            return stream.read(BEGINNING_BYTES)
        except UNREADABLE as problem:
            raise CorpusError(f"{file.path}: damaged or truncated {file.compression} file ({problem}).") from None


def decompressed(raw: BinaryIO | PlannedFile, compression: str) -> BinaryIO | io.BufferedIOBase:
    """Return a stream of the bytes of an open file behind its compression, which may be none."""
    return _DECOMPRESSORS[compression](raw)


def _zstandard(raw: BinaryIO | PlannedFile) -> BinaryIO:
    """Decompress with pyarrow, which notices a truncated file; python-zstandard's reader ends it in silence."""
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")  # type: ignore[no-any-return]


_DECOMPRESSORS: dict[str, Callable[[Any], BinaryIO | io.BufferedIOBase]] = {
    "": lambda raw: raw,
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstandard,
}
