"""The segments that are still to be tokenised, handed out to workers in the order in which they are needed."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable

from headrace.data.cache.cache import Cache


class WorkQueue:
    """Segments to build. Those that somebody waits for come first; a compressed file has one worker at a time."""

    def __init__(self, cache: Cache, only: Container[int] | None) -> None:
        """`only`: the segments to build; None: all."""
        self._cache = cache
        self._only = only
        self._lock = threading.Lock()
        self._pending: list[int] = []
        self._taken: set[int] = set()
        self._busy_streams: set[tuple[int, str]] = set()
        self.set_order(range(len(cache.segments)))

    def set_order(self, order: Iterable[int]) -> None:
        """Set which segments to build first; `order` must name them all."""
        mine = [index for index in order if self._only is None or index in self._only]
        self._pending = [index for index in mine if not self._cache.has(index)][::-1]

    @property
    def is_empty(self) -> bool:
        return not self._pending

    def take(self) -> int | None:
        """Return the next segment to build; None if all are taken; -1 if other workers read the files of the rest."""
        with self._lock:
            for wanted in self._cache.wanted():
                index = self._earliest(wanted)
                if self._may_take(index):
                    return self._claim(index)
            for place in range(len(self._pending) - 1, -1, -1):
                index = self._pending[place]
                if index in self._taken:
                    continue
                if self._may_take(index):
                    del self._pending[place]
                    return self._claim(index)
            self._pending = [index for index in self._pending if index not in self._taken]
            return -1 if self._pending else None

    def release(self, index: int) -> None:
        """Let other workers read the file of a segment."""
        with self._lock:
            segment = self._cache.segments[index]
            self._busy_streams.discard((segment.source, segment.path))

    def _earliest(self, index: int) -> int:
        """Return the first missing segment of a compressed file: whoever wants its middle needs that one first."""
        segments = self._cache.segments
        while segments[index].needs_previous and not self._cache.has(index - 1):
            index -= 1
        return index

    def _may_take(self, index: int) -> bool:
        segment = self._cache.segments[index]
        is_busy = segment.is_sequential and (segment.source, segment.path) in self._busy_streams
        return index not in self._taken and not is_busy

    def _claim(self, index: int) -> int:
        self._taken.add(index)
        segment = self._cache.segments[index]
        if segment.is_sequential:
            self._busy_streams.add((segment.source, segment.path))
        return index
