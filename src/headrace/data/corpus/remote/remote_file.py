"""A remote file that is open: bytes at any place, with what will be wanted next already under way."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from headrace.data.corpus.remote.addresses import split_address
from headrace.data.corpus.remote.fetch import current_check, fetch_soon, wait_for
from headrace.data.corpus.remote.store import Entry
from headrace.data.corpus.sources import SourceFile

PART_BYTES = 2 << 20
"""Bytes of one request."""
WINDOW_BYTES = 16 << 20
"""The most that is fetched before it is read."""
FIRST_PART_BYTES = 256 << 10
"""The first request of a file that is read front to back: often only its beginning is looked at."""
PARTS_AHEAD = 4
"""Requests under way for a file that is read front to back."""
FILES_AHEAD = 16
FILES_AHEAD_BYTES = 8 << 20
"""Small files that are under way at once: so many, of so many bytes together."""


@dataclass(frozen=True)
class _Part:
    begin: int
    end: int
    data: Future[bytes]


class RemoteFile(io.RawIOBase):
    """A file in a store. Bytes that are announced (`expect`), and those after the last read one, are fetched ahead."""

    def __init__(self, file: SourceFile, like: RemoteFile | None = None) -> None:
        """`like`: the same file, open already; what it has under way is used."""
        super().__init__()
        self._file = file
        self._entry = Entry(split_address(file.path).key, file.size, file.version)
        self._parts: deque[_Part] = deque() if like is None else like._parts.copy()  # next to one another, in order
        self._is_shared = like is not None
        self._place = 0
        self._step = FIRST_PART_BYTES
        self._depth = 1
        self._is_unwanted = current_check()

    # As a file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        end = min(self._place + len(view), self._file.size)
        if self._place >= end:
            return 0
        self._read_ahead(self._place)
        part = self._part_at(self._place)
        assert part is not None
        data = self._wait(part)[self._place - part.begin : end - part.begin]
        view[: len(data)] = data
        self._place += len(data)
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Read exactly so many bytes, or up to the end of the file."""
        if size is None or size < 0:
            size = max(0, self._file.size - self._place)
        data = bytearray(min(size, max(0, self._file.size - self._place)))
        view, have = memoryview(data), 0
        while have < len(data):
            have += self.readinto(view[have:])
        return bytes(data)

    def close(self) -> None:
        self._drop()
        super().close()

    # As a place that has ranges

    def expect(self, begin: int, end: int) -> None:
        """Begin to fetch bytes that will be read soon, at most 16 MiB of them, in parallel requests."""
        end = min(end, self._file.size, begin + WINDOW_BYTES)
        soon = min(end, begin + FIRST_PART_BYTES)
        if begin >= end or (self._part_at(begin) and self._part_at(soon - 1)):
            return
        self._drop()
        for place in range(begin, end, PART_BYTES):
            self._add(place, min(place + PART_BYTES, end))

    def read_at(self, size: int, place: int) -> bytes:
        """Return bytes at a place; fewer where the file ends."""
        end = min(place + size, self._file.size)
        pieces: list[bytes] = []
        while place < end:
            part = self._part_at(place)
            if part is None:
                return b"".join([*pieces, *self._directly(place, end)])
            pieces.append(self._wait(part)[place - part.begin : end - part.begin])
            place = min(part.end, end)
        return b"".join(pieces)

    def _directly(self, begin: int, end: int) -> list[bytes]:
        """Fetch bytes that nobody announced, without giving up those that somebody did."""
        places = range(begin, end, PART_BYTES)
        parts = [self._fetch(place, min(place + PART_BYTES, end)) for place in places]
        return [self._wait(part) for part in parts]

    def _read_ahead(self, place: int) -> None:
        """Forget what lies before a place, and have the requests after it under way: more of them as it goes on."""
        if self._part_at(place) is None:
            self._drop()
            self._step, self._depth = FIRST_PART_BYTES, 1
        while self._parts and self._parts[0].end <= place:
            self._parts.popleft()
            self._depth = min(2 * self._depth, PARTS_AHEAD)
            self._step = min(2 * self._step, PART_BYTES)
        while len(self._parts) < self._depth:
            begin = self._parts[-1].end if self._parts else place
            if begin >= self._file.size:
                break
            self._add(begin, min(begin + self._step, self._file.size))

    def _part_at(self, place: int) -> _Part | None:
        return next((part for part in self._parts if part.begin <= place < part.end), None)

    def _add(self, begin: int, end: int) -> None:
        self._parts.append(self._fetch(begin, end))

    def _fetch(self, begin: int, end: int) -> _Part:
        return _Part(begin, end, fetch_soon(self._file.path, self._entry, begin, end, self._is_over))

    def _wait(self, part: _Part) -> bytes:
        return wait_for(part.data, self._file.path, self._is_over)

    def _is_over(self) -> bool:
        return self.closed or self._is_unwanted()

    def _drop(self) -> None:
        for part in () if self._is_shared else self._parts:
            part.data.cancel()
        self._parts.clear()
        self._is_shared = False


class _Ahead(threading.local):
    def __init__(self) -> None:
        self.files: dict[str, RemoteFile] = {}


_ahead = _Ahead()


def open_remote(file: SourceFile) -> RemoteFile:
    """Open a file in a store; one that was fetched ahead is open already."""
    return RemoteFile(file, _ahead.files.get(file.path))


def each_fetched_ahead(files: Iterable[SourceFile]) -> Iterator[SourceFile]:
    """Yield files to be opened one after another by this thread, while the remote ones after each are being fetched."""
    waiting: deque[SourceFile] = deque()
    rest = iter(files)
    nbytes = 0
    try:
        while True:
            while len(waiting) < FILES_AHEAD and nbytes < FILES_AHEAD_BYTES and (file := next(rest, None)) is not None:
                waiting.append(file)
                nbytes += file.size
                if file.is_remote:
                    _ahead.files[file.path] = RemoteFile(file)
                    _ahead.files[file.path].expect(0, file.size)
            if not waiting:
                return
            yield waiting[0]
            nbytes -= waiting[0].size
            _forget(waiting.popleft())
    finally:
        for file in waiting:
            _forget(file)


def _forget(file: SourceFile) -> None:
    if (known := _ahead.files.pop(file.path, None)) is not None:
        known.close()
