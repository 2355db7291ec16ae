"""Segments become chunks of documents, in bounded memory, whatever the format.

`Reader` is what one builder uses to read; it keeps a few compressed files open between their segments, because those
can only be read front to back.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import hashlib
import io
import lzma
import os
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

from headrace.data.documents import (
    BOUNDARY_WINDOW_BYTES,
    Stretch,
    find_boundary,
    parquet_documents,
    split_stretch,
)
from headrace.data.parquet import iterate_texts
from headrace.data.segments import SEGMENT_BYTES, Segment
from headrace.data.sources import Source, SourceFile
from headrace.errors import CorpusError

MAX_OPEN_STREAMS = 4
BOMB_FREE_BYTES = 64 << 20
# What a document costs in memory beside its text, so that a chunk of tiny rows is bounded too.
DOCUMENT_OVERHEAD_BYTES = 40


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


@dataclass
class Chunk:
    """Text that is tokenised and stored together: some 8 to 16 MiB."""

    members: list[Member] = field(default_factory=list)
    nbytes: int = 0

    def add(self, member: Member, nbytes: int) -> None:
        self.members.append(member)
        self.nbytes += nbytes

    @property
    def is_open(self) -> bool:
        return self.members[-1].is_open


class Reader:
    """Reads segments of a corpus; safe to use from several threads."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._streams: dict[tuple[int, str], _CompressedFile] = {}
        self._lock = threading.Lock()

    def chunks(self, segment: Segment) -> Iterator[Chunk]:
        """The text of a segment. Its files must still be what they were when the corpus was planned."""
        source = self._sources[segment.source]
        if segment.kind == "files":
            yield from _group_chunks(source, segment)
        elif segment.kind == "range":
            chunk = Chunk()
            chunk.add(*_read_range(source, segment.files[0], segment.begin, segment.end, segment.is_last))
            yield chunk
        elif segment.kind == "rows":
            yield from _row_chunks(source, segment)
        else:
            yield from self._stream_chunks(source, segment)

    def close(self) -> None:
        """Close what is open between segments."""
        with self._lock:
            for stream in self._streams.values():
                stream.close()
            self._streams.clear()

    def _stream_chunks(self, source: Source, segment: Segment) -> Iterator[Chunk]:
        """Continue the open stream if it stands where this segment begins; else start over and skip."""
        name = (segment.source, segment.path)
        with self._lock:
            stream = self._streams.pop(name, None)
        if stream is None or stream.num_chunks > segment.ordinal:
            if stream is not None:
                stream.close()
            stream = _CompressedFile(source, segment.files[0])
        try:
            for _ in stream.members(until=segment.ordinal):
                pass
            for member, nbytes in stream.members(until=None if segment.is_last else segment.ordinal + 1):
                chunk = Chunk()
                chunk.add(member, nbytes)
                yield chunk
        except BaseException:
            stream.close()
            raise
        if segment.is_last:
            stream.close()
            return
        with self._lock:
            self._streams[name] = stream
            for other in list(self._streams)[:-MAX_OPEN_STREAMS]:
                self._streams.pop(other).close()


def _group_chunks(source: Source, segment: Segment) -> Iterator[Chunk]:
    chunk = Chunk()
    for file in segment.files:
        if not file.compression:
            chunk.add(*_read_range(source, file, 0, file.size, True))
            continue
        with _CompressedFile(source, file) as stream:
            for member, nbytes in stream.members(until=None):
                chunk.add(member, nbytes)
                if chunk.nbytes >= SEGMENT_BYTES:
                    yield chunk
                    chunk = Chunk()
    if chunk.members:
        yield chunk


def _member(source: Source, file: SourceFile, stretch: Stretch) -> Member:
    how = f"{source.reading_hash} {stretch.format} {stretch.is_continuation} {stretch.is_open}"
    content = hashlib.blake2b(how.encode(), digest_size=20)
    content.update(stretch.raw)
    split = functools.partial(split_stretch, source, stretch)
    return Member(file.name, content.hexdigest(), stretch.is_open, split)


def _open_planned(file: SourceFile) -> BinaryIO:
    try:
        handle = open(file.path, "rb")  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        raise CorpusError(f"{file.path}: was removed while the corpus was being read. Run again.") from None
    except OSError as problem:
        raise CorpusError(f"{file.path}: cannot be read ({problem.strerror}).") from None
    try:
        _check_unchanged(file, handle)
    except CorpusError:
        handle.close()
        raise
    return handle


@contextmanager
def _unchanged(file: SourceFile) -> Iterator[BinaryIO]:
    """Open a file that must be, before and after, the one that was planned."""
    with _open_planned(file) as handle:
        try:
            yield handle
        except OSError as problem:
            raise CorpusError(f"{file.path}: reading failed ({problem.strerror or problem}).") from None
        _check_unchanged(file, handle)


def _check_unchanged(file: SourceFile, handle: BinaryIO) -> None:
    now = SourceFile.from_stat(file.path, file.root_length, os.fstat(handle.fileno()))
    if now != file:
        grown = f" ({file.size:,} → {now.size:,} bytes)" if now.size != file.size else ""
        raise CorpusError(
            f"{file.path}: changed while the corpus was being read{grown}. Run again when it is complete."
        )


def _read_range(source: Source, file: SourceFile, begin: int, end: int, is_last: bool) -> tuple[Member, int]:
    """Bytes [begin, end) of a text file, both moved on to the next boundary."""
    with _unchanged(file) as handle:
        start, starts_document = _boundary_at(source, file, handle, begin) if begin else (0, True)
        stop, ends_document = (file.size, True) if is_last else _boundary_at(source, file, handle, end)
        raw = os.pread(handle.fileno(), stop - start, start)
        if len(raw) != stop - start:
            raise CorpusError(f"{file.path}: changed while the corpus was being read. Run again when it is complete.")
    stretch = Stretch(
        raw, file.path, file.format, start, not starts_document, not ends_document, lambda: _line_number(file, start)
    )
    return _member(source, file, stretch), len(raw)


def _boundary_at(source: Source, file: SourceFile, handle: BinaryIO, nominal: int) -> tuple[int, bool]:
    """Where the text may be cut at or after a nominal offset: a function of the file's bytes alone."""
    reach = 64 << 10
    context = 4  # a safe cut looks back at most one character
    while True:
        window = os.pread(handle.fileno(), context + reach, nominal - context)
        is_end = nominal - context + len(window) >= file.size
        try:
            found = find_boundary(source, file.format == "jsonl", window, context, is_end)
        except CorpusError as problem:
            raise CorpusError(f"{file.path}:{_line_number(file, nominal)}: {problem}.") from None
        if found is not None:
            return found[0] + nominal - context, found[1]
        reach *= 4


def _line_number(file: SourceFile, offset: int) -> int:
    """The number of the line that begins at an offset. Reads all before it: only for error messages."""
    lines, place = 1, 0
    with _open_planned(file) as handle:
        while place < offset:
            block = os.pread(handle.fileno(), min(offset - place, 1 << 20), place)
            if not block:
                break
            lines += block.count(b"\n")
            place += len(block)
    return lines


def _row_chunks(source: Source, segment: Segment) -> Iterator[Chunk]:
    file = segment.files[0]
    with _unchanged(file):
        documents: list[bytes] = []
        noticed: Counter[str] = Counter()
        cost = 0
        for first_row, values in iterate_texts(file.path, source.text_field, segment.begin, segment.end):
            rows = parquet_documents(source, values, file.path, first_row, noticed)
            documents += rows
            cost += sum(map(len, rows)) + DOCUMENT_OVERHEAD_BYTES * len(rows)
            if cost >= SEGMENT_BYTES:
                yield _row_chunk(source, file, documents, noticed)
                documents, noticed, cost = [], Counter(), 0
        if documents or noticed:
            yield _row_chunk(source, file, documents, noticed)


def _row_chunk(source: Source, file: SourceFile, documents: list[bytes], noticed: Counter[str]) -> Chunk:
    content = hashlib.blake2b(f"{source.reading_hash} rows".encode(), digest_size=20)
    for document in documents:
        content.update(len(document).to_bytes(8, "little") + document)

    def split(counted: Counter[str]) -> Iterator[list[bytes]]:
        counted.update(noticed)
        yield documents

    chunk = Chunk()
    chunk.add(Member(file.name, content.hexdigest(), False, split), sum(map(len, documents)))
    return chunk


class _CompressedFile:
    """A compressed text file, read front to back in chunks that end on boundaries near multiples of 8 MiB."""

    def __init__(self, source: Source, file: SourceFile) -> None:
        self._source = source
        self._file = file
        self._raw = _open_planned(file)
        self._stream = _decompressed(file, self._raw)
        self._limit = max(BOMB_FREE_BYTES, source.max_expansion * file.size)
        self._pending = b""
        self._position = 0
        self._line = 1
        self._is_open = False
        self._at_end = False
        self.num_chunks = 0

    def __enter__(self) -> _CompressedFile:
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
            yield _member(self._source, self._file, stretch), len(raw)

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
                _check_unchanged(self._file, self._raw)
            parts.append(block)
            have += len(block)
            if self._position + have > self._limit:
                raise CorpusError(
                    f"{self._file.path}: expands to more than {self._limit >> 20:,} MiB, over"
                    f" {self._source.max_expansion} times its size: a decompression bomb? If it is meant to, raise"
                    " max_expansion of its source."
                )
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
