"""Where a row came from: source, file, document and tokens, with the text.

A document is named `FILE#SEGMENT.NUMBER`: the file's path, which segment of the file, and which document in it. Of a
document that spans several segments every part has a name of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.data.cache.cache import Cache
from headrace.data.order.rows import Extent
from headrace.errors import UsageError


@dataclass(frozen=True)
class Span:
    """Part of a row: consecutive tokens of one document."""

    source: str
    file: str
    document: str
    """Its name, as `skip` takes it."""
    start: int
    stop: int
    """Tokens [start, stop) of the document."""
    text: str


@dataclass(frozen=True)
class RowTrace:
    """Everything that a row was made from, in order."""

    row: int
    spans: list[Span]


class Tracer:
    """An index of documents by token and by name, which keeps what it has looked up."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._segments: dict[int, _SegmentDocuments] = {}

    def row(self, row: int, extents: list[Extent]) -> RowTrace:
        """Return the documents behind the extents of a row."""
        spans = []
        for extent in extents:
            documents = self._documents(extent.segment)
            label = self._cache.sources[self._cache.segments[extent.segment].source].label
            start = extent.start
            while start < extent.stop:
                number = int(np.searchsorted(documents.bounds, start, side="right")) - 1
                first, last = documents.bounds[number : number + 2].tolist()
                stop = min(last, extent.stop)
                ids = np.concatenate(list(self._cache.tokens(extent.segment, start, stop)))
                file, name = documents.name(number)
                spans.append(Span(label, file, name, start - first, stop - first, self._cache.tokenizer.decode(ids)))
                start = stop
        return RowTrace(row, spans)

    def find(self, name: str) -> tuple[int, int, int]:
        """Return the segment and the tokens [start, stop) of a document, by its name."""
        file, _, numbers = name.rpartition("#")
        ordinal, _, document = numbers.partition(".")
        if not file or not ordinal.isdigit() or not document.isdigit():
            raise UsageError(f"{name!r} does not name a document; names look like corpus/a.txt#0.3")
        for index, segment in enumerate(self._cache.segments):
            may_hold = segment.names_files or segment.path == file
            if segment.ordinal == int(ordinal) and may_hold:
                found = self._documents(index).find(file, int(document))
                if found is not None:
                    return index, *found
        raise UsageError(f"{name!r}: no such document in this corpus (`headrace inspect CACHE --step N` shows names)")

    def _documents(self, segment: int) -> _SegmentDocuments:
        if segment not in self._segments:
            self._segments[segment] = _SegmentDocuments(self._cache, segment)
        return self._segments[segment]


class _SegmentDocuments:
    """The documents of a segment and the files they stand in."""

    def __init__(self, cache: Cache, index: int) -> None:
        segment = cache.segments[index]
        total = cache.entry(index).num_tokens
        self.bounds = np.unique(np.concatenate([[0], cache.document_ends(index), [total]]))
        self._ordinal = segment.ordinal
        root = segment.path[: segment.root_length]
        self._files: list[str] = []
        counts: list[int] = []
        parts = cache.parts(index)
        for place, part in enumerate(parts):
            # Equal text shares a shard, so outside groups the shard does not know whose text it is.
            file = root + part.name if segment.names_files else segment.path
            # Documents are counted where they end; what goes on beyond the segment is named here too.
            count = part.num_documents + (part.is_open and place == len(parts) - 1)
            if self._files and self._files[-1] == file:
                counts[-1] += count
            else:
                self._files.append(file)
                counts.append(count)
        self._stops = np.cumsum(counts)

    def name(self, number: int) -> tuple[str, str]:
        """Return the file and the full name of the document with a number in this segment."""
        owner = int(np.searchsorted(self._stops, number, side="right"))
        before = int(self._stops[owner - 1]) if owner else 0
        file = self._files[owner]
        return file, f"{file}#{self._ordinal}.{number - before}"

    def find(self, file: str, number: int) -> tuple[int, int] | None:
        """Return the tokens [start, stop) of a file's document; None: there is none of that number."""
        if file not in self._files:
            return None
        owner = self._files.index(file)
        place = number + (int(self._stops[owner - 1]) if owner else 0)
        if place >= self._stops[owner]:
            return None
        return int(self.bounds[place]), int(self.bounds[place + 1])
