"""Compressed text files, which can only be read front to back."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from headrace.data.corpus.documents import BOUNDARY_WINDOW_BYTES, Stretch, find_boundary
from headrace.data.corpus.planned_files import Member, check_unchanged, make_member, open_planned
from headrace.data.corpus.segments import SEGMENT_BYTES
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError

BOMB_FREE_BYTES = 64 << 20


def expansion_limit(source: Source, file: SourceFile) -> int:
    """Return how much text a compressed file may hold."""
    return max(BOMB_FREE_BYTES, source.max_expansion * file.size)


def check_expansion(source: Source, file: SourceFile, nbytes: int) -> None:
    """Refuse a file whose text turns out larger than it may be."""
    limit = expansion_limit(source, file)
    if nbytes > limit:
        raise CorpusError(
            f"{file.path}: expands to more than {limit >> 20:,} MiB, over {source.max_expansion} times its size: a"
            " decompression bomb? If it is meant to, raise the limit: data.max_expansion=FACTOR"
        )


class CompressedFile:
    """A compressed text file, read front to back in chunks that end on boundaries near multiples of 8 MiB."""

    def __init__(self, source: Source, file: SourceFile) -> None:
        self._source = source
        self._file = file
        self._raw = open_planned(file)
        self._stream = _decompressed(file, self._raw)
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

    def members(self, until: int | None) -> Iterator[tuple[Member, int]]:
        """Chunks up to number `until` (None: to the end of the file), each with its size."""
        while (until is None or self.num_chunks < until) and not (self._at_end and not self._pending):
            offset, line, is_continuation = self._position, self._line, self._is_open
            raw, ends_document = self._next_raw()
            if not raw:
                break
            self._is_open = not ends_document
            stretch = Stretch(
                raw,
                self._file.path,
                self._file.format,
                offset,
                is_continuation,
                self._is_open,
                functools.partial(int, line),
            )
            yield make_member(self._source, self._file, stretch), len(raw)

    def _next_raw(self) -> tuple[bytes, bool]:
        target = max((self.num_chunks + 1) * SEGMENT_BYTES - self._position, 1)
        reach = target + BOUNDARY_WINDOW_BYTES
        found = None
        while found is None:
            self._fill(reach)
            if len(self._pending) <= target and self._at_end:
                found = (len(self._pending), True)
                break
            try:
                found = find_boundary(self._source, self._file.format == "jsonl", self._pending, target, self._at_end)
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


def _decompressed(file: SourceFile, raw: BinaryIO) -> BinaryIO | io.BufferedIOBase:
    if file.compression == ".gz":
        return gzip.GzipFile(fileobj=raw, mode="rb")
    if file.compression == ".bz2":
        return bz2.BZ2File(raw)
    if file.compression == ".xz":
        return lzma.LZMAFile(raw)
    import pyarrow as pa

    # pyarrow notices a truncated zstd file; python-zstandard's reader ends it in silence.
    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")  # type: ignore[no-any-return]
