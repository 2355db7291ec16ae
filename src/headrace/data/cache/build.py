"""The builder: worker threads that turn segments into sealed shards, in the order in which they are needed."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import psutil

from headrace.data.cache.encode import encode_documents
from headrace.data.cache.manifest import MANIFEST, PARTIAL, Cache, Entry
from headrace.data.cache.reuse import KnownTokens, Reuse
from headrace.data.cache.shards import PartInfo, ShardInfo, ShardWriter, TokenArray
from headrace.data.corpus.chunks import Chunk, FilePart
from headrace.data.corpus.readers import Reader
from headrace.data.corpus.segments import Segment
from headrace.data.tokens.encoders import Encoder
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.errors import CacheError, HeadraceError, UsageError
from headrace.files import digest

Put = Callable[[TokenArray, npt.NDArray[np.int64]], None]
SAVE_SECONDS = 5.0
# A worker holds a chunk, its documents, a MiB of tokens, and its tokenizer with a cache of words.
WORKER_BYTES = 80 << 20
DEFAULT_MEMORY_BYTES = 1 << 30
MINIMUM_MEMORY_BYTES = 96 << 20


def check_memory_budget(budget: int | None) -> None:
    """Refuse a budget that tokenising cannot keep, before any work is done."""
    if budget is not None and budget < MINIMUM_MEMORY_BYTES:
        raise UsageError(
            f"memory_budget {budget / 2**20:.1f} MiB is too small for tokenising. The least is"
            f" data.memory_budget={MINIMUM_MEMORY_BYTES >> 20}MiB"
        )


class _Closed(Exception):  # noqa: N818 - a way out, not an error
    """The builder was closed while a worker was in the middle of a segment."""


@dataclass
class Progress:
    """How far a build is."""

    total_bytes: int
    done_bytes: int = 0
    tokenised_bytes: int = 0
    """Of these, what was not found in an earlier build."""
    tokenised_files: int = 0
    num_tokens: int = 0
    num_documents: int = 0


class Builder:
    """Fills a cache. Use as a context manager; `wait` returns when everything is sealed."""

    def __init__(
        self,
        cache: Cache,
        num_workers: int | None = None,
        memory_budget: int | None = None,
        in_background: bool = False,
        only: Container[int] | None = None,
    ) -> None:
        """`only`: the segments to build. The rest is somebody else's, and so is the manifest."""
        check_memory_budget(memory_budget)
        budget = memory_budget or DEFAULT_MEMORY_BYTES
        self.cache = cache
        wanted_workers = num_workers or os.cpu_count() or 1
        self.num_workers = max(1, min(wanted_workers, budget // WORKER_BYTES))
        self.cpu_seconds = 0.0
        self._memory_limit = int(budget * 0.85) + anonymous_bytes()
        self._in_background = in_background
        self._lock = threading.Lock()
        self._reader = Reader(cache.sources)
        self._reuse = Reuse(cache)
        self._only = only
        self._pending: list[int] = []
        self.set_order(range(len(cache.segments)))
        self._taken: set[int] = set()
        self._busy_streams: set[tuple[int, str]] = set()
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self._num_running = self.num_workers
        self.failure: BaseException | None = None
        self._saved_s = time.monotonic()
        self.progress = self._initial_progress()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Builder:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_order(self, order: Iterable[int]) -> None:
        """Which segments to build first; must name them all."""
        mine = [index for index in order if self._only is None or index in self._only]
        self._pending = [index for index in mine if not self.cache.has(index)][::-1]

    def start(self) -> None:
        """Start the workers; with nothing to do, the cache is sealed at once."""
        if not self._pending:
            if self.cache.is_complete and (self.cache.path / PARTIAL).exists():
                self._seal()
            return
        for number in range(self.num_workers):
            thread = threading.Thread(target=self._work, name=f"headrace-build-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything that is to be built is sealed (True) or the time is up (False). A failure is raised."""
        # Not Thread.join: interrupted by a signal, it would take a running thread for a finished one (Python 3.11).
        if self._threads and not self._finished.wait(timeout):
            return False
        if self.failure is not None:
            raise self.failure
        if not self.cache.is_complete and self._only is None:
            self.cache.require(range(len(self.cache.segments)))
        return True

    def close(self) -> None:
        """Stop, leaving out what is half done; what is sealed stays, and a later start goes on from it."""
        self._stopping.set()
        if not self.cache.is_complete:
            self.cache.fail(CacheError(f"{self.cache.path}: the builder was closed before the cache was complete."))
        if threading.current_thread() in self._threads:
            return  # called by the garbage collector, anywhere in a worker: it must not wait for itself or for others
        for thread in self._threads:
            thread.join()
        self._reader.close()
        if not self.cache.is_complete and self.failure is None:
            self.cache.save(PARTIAL)

    def _initial_progress(self) -> Progress:
        cache = self.cache
        progress = Progress(total_bytes=cache.num_bytes)
        for index, segment in enumerate(cache.segments):
            if cache.has(index):
                entry = cache.entry(index)
                progress.done_bytes += segment.nbytes
                progress.num_tokens += entry.num_tokens
                progress.num_documents += entry.num_documents
        return progress

    def _work(self) -> None:
        if self._in_background:
            _lower_priority()
        encoder: Encoder | None = None
        began_s = time.thread_time()
        try:
            while not self._stopping.is_set():
                index = self._take()
                if index is None:
                    break
                if index < 0:  # all that is left belongs to files that others are reading
                    self._stopping.wait(0.005)
                    continue
                try:
                    encoder = encoder or self.cache.tokenizer.encoder()
                    self.cache.put(index, self._build(index, encoder))
                finally:
                    self._release(index)
                self._after_segment(index)
                if anonymous_bytes() > self._memory_limit:
                    encoder.recycle()
        except _Closed:
            pass
        except BaseException as problem:
            self._fail(problem)
        finally:
            with self._lock:
                self.cpu_seconds += time.thread_time() - began_s
                self._num_running -= 1
                if self._num_running == 0:
                    self._finished.set()

    def _take(self) -> int | None:
        """The next segment to build: one that somebody waits for, else the next in order. -1: none just now."""
        with self._lock:
            for wanted in self.cache.wanted():
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

    def _earliest(self, index: int) -> int:
        """A compressed file is read front to back: whoever wants its middle gets its first missing segment built."""
        segments = self.cache.segments
        while segments[index].needs_previous and not self.cache.has(index - 1):
            index -= 1
        return index

    def _may_take(self, index: int) -> bool:
        segment = self.cache.segments[index]
        return index not in self._taken and not (
            segment.is_sequential and (segment.source, segment.path) in self._busy_streams
        )

    def _claim(self, index: int) -> int:
        self._taken.add(index)
        segment = self.cache.segments[index]
        if segment.is_sequential:
            self._busy_streams.add((segment.source, segment.path))
        return index

    def _release(self, index: int) -> None:
        with self._lock:
            segment = self.cache.segments[index]
            self._busy_streams.discard((segment.source, segment.path))

    def _build(self, index: int, encoder: Encoder) -> Entry:
        segment = self.cache.segments[index]
        infos: list[ShardInfo] = []
        noticed: Counter[str] = Counter()
        for chunk in self._reader.chunks(segment):
            key = self._key(segment, chunk)
            found = self.cache.shards.find(key)
            if found is None:
                found = self._write(segment, chunk, key, encoder)
            info, chunk_noticed = found
            noticed.update(chunk_noticed)
            if info.num_tokens:
                infos.append(info)
        return Entry(tuple(infos), noticed)

    def _key(self, segment: Segment, chunk: Chunk) -> str:
        # Files of a group are named in the shard, so their names are part of what it is.
        names = [part.name for part in chunk.parts] if segment.is_group else []
        return digest("shard-1", self.cache.tokenizer.hash, *names, *(part.digest for part in chunk.parts))

    def _write(self, segment: Segment, chunk: Chunk, key: str, encoder: Encoder) -> tuple[ShardInfo, Counter[str]]:
        """Tokens of a chunk: copied where an earlier shard has a file's, encoded otherwise."""
        parts: list[PartInfo] = []
        num_fresh = 0
        with self.cache.shards.writer(key) as writer:
            found = ((part, self._reuse.find(segment, part.digest)) for part in chunk.parts)
            for is_known, run in itertools.groupby(found, key=lambda pair: pair[1] is not None):
                if is_known:
                    parts += [_copy(part, known, writer) for part, known in run if known is not None]
                else:
                    fresh = [part for part, _ in run]
                    add = self._unless_closed(writer.add)
                    for together in _ending_when_open(fresh):
                        parts += _encode(together, self.cache.tokenizer, encoder, writer, add)
                    num_fresh += len(fresh)
            info = writer.seal(parts)
        with self._lock:
            self.progress.tokenised_files += num_fresh
            self.progress.tokenised_bytes += int(chunk.nbytes * num_fresh / len(chunk.parts))
        noticed: Counter[str] = Counter()
        for part in parts:
            noticed.update(part.noticed)
        return info, noticed

    def _unless_closed(self, put: Put) -> Put:
        """Wrap what takes a MiB of tokens at a time, so that whoever closes the builder need not wait for a segment."""

        def put_or_end(tokens: TokenArray, ends: npt.NDArray[np.int64]) -> None:
            if self._stopping.is_set():
                raise _Closed
            put(tokens, ends)

        return put_or_end

    def _after_segment(self, index: int) -> None:
        entry = self.cache.entry(index)
        with self._lock:
            self.progress.done_bytes += self.cache.segments[index].nbytes
            self.progress.num_tokens += entry.num_tokens
            self.progress.num_documents += entry.num_documents
            if self.cache.is_complete:
                self._seal()
            elif time.monotonic() - self._saved_s > SAVE_SECONDS:
                self.cache.save(PARTIAL)
                self._saved_s = time.monotonic()

    def _seal(self) -> None:
        """The manifest last; then what only an older version of the corpus needed is removed."""
        cache = self.cache
        if sum(cache.entry(index).num_tokens for index in range(len(cache.segments))) == 0:
            raise CacheError(f"{cache.path}: the corpus has no text: every document is empty.")
        garbage = self._reuse.retire()
        cache.save(MANIFEST)
        (cache.path / PARTIAL).unlink(missing_ok=True)
        for key in garbage:
            cache.shards.remove(key)

    def _fail(self, problem: BaseException) -> None:
        if not isinstance(problem, HeadraceError | Exception):
            problem = CacheError(f"a tokenising worker ended: {problem!r}")
        self.failure = self.failure or problem
        self.cache.fail(problem)
        self._stopping.set()
        with contextlib.suppress(HeadraceError):
            self.cache.save(PARTIAL)


def _copy(part: FilePart, known: KnownTokens, writer: ShardWriter) -> PartInfo:
    writer.add(known.tokens, known.ends)
    counts = (len(known.ends), len(known.tokens))
    return PartInfo(part.name, part.digest, *counts, part.is_open, dict(known.noticed))


def _ending_when_open(parts: list[FilePart]) -> Iterator[list[FilePart]]:
    """Divide files into runs whose last one alone may be open: the next one is the rest of its document."""
    start = 0
    for stop, part in enumerate(parts, start=1):
        if part.is_open or stop == len(parts):
            yield parts[start:stop]
            start = stop


def _encode(
    parts: list[FilePart], tokenizer: Tokenizer, encoder: Encoder, writer: ShardWriter, add: Put
) -> list[PartInfo]:
    """Encode files together: a call of the encoder costs as much as some 50 kB of text. Only the last may be open."""
    begin, first_document = writer.num_tokens, writer.num_documents
    noticed: list[Counter[str]] = [Counter() for _ in parts]
    stops: list[int] = []  # documents up to each file's end
    ends: list[npt.NDArray[np.int64]] = []

    def documents() -> Iterator[list[bytes]]:
        count = 0
        for part, counted in zip(parts, noticed, strict=True):
            for batch in part.documents(counted):
                count += len(batch)
                yield batch
            stops.append(count)

    def put(tokens: TokenArray, token_ends: npt.NDArray[np.int64]) -> None:
        ends.append(token_ends + writer.num_tokens - begin)
        add(tokens, token_ends)

    encode_documents(documents(), parts[-1].is_open, tokenizer, encoder, put)
    num_documents = writer.num_documents - first_document
    bounds = np.concatenate([np.zeros(1, np.int64), *ends])
    token_stops = [int(bounds[min(stop, num_documents)]) for stop in stops]
    token_stops[-1] = writer.num_tokens - begin  # the beginning of an open document has no end yet
    infos = []
    before = (0, 0)
    for part, own, stop, token_stop in zip(parts, noticed, stops, token_stops, strict=True):
        after = (min(stop, num_documents), token_stop)
        infos.append(
            PartInfo(part.name, part.digest, after[0] - before[0], after[1] - before[1], part.is_open, dict(own))
        )
        before = after
    return infos


def anonymous_bytes() -> int:
    """Memory of this process that is not a mapped file: what a budget is about."""
    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))


def _lower_priority() -> None:
    """Training goes first: on Linux a thread has a priority of its own, and a waiting consumer leaves the core idle."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
