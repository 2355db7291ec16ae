"""Segments become chunks of documents, in bounded memory, whatever the format.

`Reader` is what one builder uses to read; it keeps a few compressed files open between their segments, because those
can only be read front to back.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from headrace.data.corpus.compression import CompressedFile, check_expansion, expansion_limit
from headrace.data.corpus.documents import Stretch, context_bytes, find_boundary, parquet_documents
from headrace.data.corpus.formats.parquet import iterate_texts
from headrace.data.corpus.planned_files import Member, make_member, open_planned, unchanged
from headrace.data.corpus.segments import SEGMENT_BYTES, Segment
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError

MAX_OPEN_STREAMS = 4
# What a document costs in memory beside its text, so that a chunk of tiny rows is bounded too.
DOCUMENT_OVERHEAD_BYTES = 40


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
        self._streams: dict[tuple[int, str], CompressedFile] = {}
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
            stream = CompressedFile(source, segment.files[0])
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
        with CompressedFile(source, file) as stream:
            for member, nbytes in stream.members(until=None):
                chunk.add(member, nbytes)
                if chunk.nbytes >= SEGMENT_BYTES:
                    yield chunk
                    chunk = Chunk()
    if chunk.members:
        yield chunk


def _read_range(source: Source, file: SourceFile, begin: int, end: int, is_last: bool) -> tuple[Member, int]:
    """Bytes [begin, end) of a text file, both moved on to the next boundary."""
    with unchanged(file) as handle:
        start, starts_document = _boundary_at(source, file, handle, begin) if begin else (0, True)
        stop, ends_document = (file.size, True) if is_last else _boundary_at(source, file, handle, end)
        raw = os.pread(handle.fileno(), stop - start, start)
        if len(raw) != stop - start:
            raise CorpusError(f"{file.path}: changed while the corpus was being read. Run again when it is complete.")
    stretch = Stretch(
        raw, file.path, file.format, start, not starts_document, not ends_document, lambda: _line_number(file, start)
    )
    return make_member(source, file, stretch), len(raw)


def _boundary_at(source: Source, file: SourceFile, handle: BinaryIO, nominal: int) -> tuple[int, bool]:
    """Where the text may be cut at or after a nominal offset: a function of the file's bytes alone."""
    reach = 64 << 10
    context = context_bytes(source)
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
    with open_planned(file) as handle:
        while place < offset:
            block = os.pread(handle.fileno(), min(offset - place, 1 << 20), place)
            if not block:
                break
            lines += block.count(b"\n")
            place += len(block)
    return lines


def _row_chunks(source: Source, segment: Segment) -> Iterator[Chunk]:
    file = segment.files[0]
    with unchanged(file):
        documents: list[bytes] = []
        noticed: Counter[str] = Counter()
        cost = 0
        limit = expansion_limit(source, file)
        expanded = 0
        for first_row, values in iterate_texts(file.path, source.text_field, segment.begin, segment.end, limit):
            expanded += sum(len(value) for value in values if value)
            check_expansion(source, file, expanded)
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
