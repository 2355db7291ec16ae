"""Segments become chunks of documents, in bounded memory, whatever the format.

`Reader` is what one builder uses to read; it keeps a few files open between their segments that can only be read front
to back: compressed ones, tables and archives.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence

from headrace.data.corpus.chunks import Chunk
from headrace.data.corpus.formats.format import TextFormat
from headrace.data.corpus.formats.registry import format_for
from headrace.data.corpus.remote.remote_file import each_fetched_ahead
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.segments import Segment
from headrace.data.corpus.sources import Source
from headrace.data.corpus.streams import FileStream, SequentialFile

MAX_OPEN_STREAMS = 4


class Reader:
    """Reads segments of a corpus; safe to use from several threads."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._streams: dict[tuple[int, str], SequentialFile] = {}
        self._lock = threading.Lock()

    def chunks(self, segment: Segment) -> Iterator[Chunk]:
        """Yield the text of a segment. Its files must not have changed since they were listed."""
        source = self._sources[segment.source]
        if segment.is_group:
            return _group_chunks(source, segment)
        if segment.is_sequential:
            return self._stream_chunks(source, segment)
        file = segment.files[0]
        return format_for(source, file).read(source, file, segment.begin, segment.end, segment.is_last)

    def close(self) -> None:
        """Close the files that are open between segments."""
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
            stream = format_for(source, segment.files[0]).open_stream(source, segment.files[0])
        try:
            for _ in stream.chunks(until=segment.ordinal):
                pass
            yield from stream.chunks(until=None if segment.is_last else segment.ordinal + 1)
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
    for file in each_fetched_ahead(segment.files):
        format = format_for(source, file)
        assert isinstance(format, TextFormat), f"{file.path} is read as text, but {format.name} is not"
        if not file.compression:
            chunk.add(format.read_range(source, file, 0, file.size, True))
            continue
        with FileStream(source, file, functools.partial(_given, format)) as stream:
            for part in stream.parts(until=None):
                chunk.add(part)
                if chunk.nbytes >= current_scale().segment_bytes:
                    yield chunk
                    chunk = Chunk()
    if chunk.parts:
        yield chunk


def _given(format: TextFormat, _: bytes) -> TextFormat:
    """Return a format that has been chosen before."""
    return format
