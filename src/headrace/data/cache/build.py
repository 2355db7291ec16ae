"""The builder: worker threads that turn segments into sealed shards, in the order in which they are needed."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass

import psutil

from headrace.data.cache.cache import Cache
from headrace.data.cache.manifest import MANIFEST, PARTIAL
from headrace.data.cache.reuse import Reuse
from headrace.data.cache.tokenise import Closed, SegmentTokeniser
from headrace.data.cache.work import WorkQueue
from headrace.data.corpus.remote.fetch import Stopped
from headrace.data.tokens.encoders import Encoder
from headrace.errors import CacheError, HeadraceError, UsageError

SAVE_SECONDS = 5.0
# A worker holds a chunk, its documents, a MiB of tokens, and its tokenizer with a cache of words.
WORKER_BYTES = 80 << 20
DEFAULT_MEMORY_BYTES = 1 << 30
MINIMUM_MEMORY_BYTES = 96 << 20


def check_memory_budget(budget: int | None) -> None:
    """Refuse a budget that is too small for tokenising, before any work is done."""
    if budget is not None and budget < MINIMUM_MEMORY_BYTES:
        raise UsageError(
            f"memory_budget {budget / 2**20:.1f} MiB is too small for tokenising. The least is"
            f" data.memory_budget={MINIMUM_MEMORY_BYTES >> 20}MiB"
        )


@dataclass
class Progress:
    """Counts of how far a build is."""

    total_bytes: int
    done_bytes: int = 0
    tokenised_bytes: int = 0
    """The part of `done_bytes` that no earlier build had tokenised."""
    tokenised_files: int = 0
    num_tokens: int = 0
    num_documents: int = 0


class Builder:
    """Worker threads that fill a cache. Use as a context manager; `wait` returns when everything is sealed."""

    def __init__(
        self,
        cache: Cache,
        num_workers: int | None = None,
        memory_budget: int | None = None,
        in_background: bool = False,
        only: Container[int] | None = None,
    ) -> None:
        """`only`: the segments to build; the rest, and the manifest, are left to another builder."""
        check_memory_budget(memory_budget)
        budget = memory_budget or DEFAULT_MEMORY_BYTES
        self.cache = cache
        wanted_workers = num_workers or os.cpu_count() or 1
        self.num_workers = max(1, min(wanted_workers, budget // WORKER_BYTES))
        self.cpu_seconds = 0.0
        self._memory_limit = int(budget * 0.85) + anonymous_bytes()
        self._in_background = in_background
        self._lock = threading.Lock()
        self._is_share = only is not None
        self._work = WorkQueue(cache, only)
        self._stopping = threading.Event()
        self._reuse = Reuse(cache)
        self._tokeniser = SegmentTokeniser(cache, self._reuse, self._stopping.is_set, self._count_encoded)
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
        """Set which segments to build first; `order` must name them all."""
        self._work.set_order(order)

    def start(self) -> None:
        """Start the workers; with nothing to do, the cache is sealed at once."""
        if self._work.is_empty:
            if self.cache.is_complete and (self.cache.path / PARTIAL).exists():
                self._seal()
            return
        for number in range(self.num_workers):
            thread = threading.Thread(target=self._run, name=f"headrace-build-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything that is to be built is sealed (True) or the time is up (False). A failure is raised."""
        # Not Thread.join: interrupted by a signal, it would take a running thread for a finished one (Python 3.11).
        if self._threads and not self._finished.wait(timeout):
            return False
        if self.failure is not None:
            raise self.failure
        if not self.cache.is_complete and not self._is_share:
            self.cache.require(range(len(self.cache.segments)))
        return True

    def close(self) -> None:
        """Stop, and drop unfinished shards; sealed ones stay, and a later build continues from them."""
        self._stopping.set()
        if not self.cache.is_complete:
            self.cache.fail(CacheError(f"{self.cache.path}: the builder was closed before the cache was complete."))
        if threading.current_thread() in self._threads:
            return  # called by the garbage collector, anywhere in a worker: it must not wait for itself or for others
        for thread in self._threads:
            thread.join()
        self._tokeniser.close()
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

    def _run(self) -> None:
        if self._in_background:
            _lower_priority()
        encoder: Encoder | None = None
        began_s = time.thread_time()
        try:
            while not self._stopping.is_set():
                index = self._work.take()
                if index is None:
                    break
                if index < 0:  # all that is left belongs to files that others are reading
                    self._stopping.wait(0.005)
                    continue
                try:
                    encoder = encoder or self.cache.tokenizer.encoder()
                    self.cache.put(index, self._tokeniser.tokenise(index, encoder))
                finally:
                    self._work.release(index)
                self._after_segment(index)
                if anonymous_bytes() > self._memory_limit:
                    encoder.recycle()
        except (Closed, Stopped):
            pass
        except BaseException as problem:
            self._fail(problem)
        finally:
            with self._lock:
                self.cpu_seconds += time.thread_time() - began_s
                self._num_running -= 1
                if self._num_running == 0:
                    self._finished.set()

    def _count_encoded(self, num_files: int, num_bytes: int) -> None:
        with self._lock:
            self.progress.tokenised_files += num_files
            self.progress.tokenised_bytes += num_bytes

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
        """Write the manifest, then remove what only an older version of the corpus needed."""
        cache = self.cache
        if sum(cache.entry(index).num_tokens for index in range(len(cache.segments))) == 0:
            raise CacheError(
                f"{cache.path}: the corpus has no text: every document is {'left out' if cache.dropped else 'empty'}."
            )
        garbage = self._reuse.retire()
        if cache.text is not None:
            cache.duplicates = cache.text.count_duplicates(cache.dropped)
        cache.save(MANIFEST)
        (cache.path / PARTIAL).unlink(missing_ok=True)
        for key in garbage:
            cache.shards.remove(key)
        if cache.text is not None:
            cache.text.records.sweep()

    def _fail(self, problem: BaseException) -> None:
        if not isinstance(problem, HeadraceError | Exception):
            problem = CacheError(
                f"a tokenising worker failed: {problem!r}. Run the same command again: what is sealed is kept."
            )
        self.failure = self.failure or problem
        self.cache.fail(problem)
        self._stopping.set()
        with contextlib.suppress(HeadraceError):
            self.cache.save(PARTIAL)


def anonymous_bytes() -> int:
    """Measure the memory of this process without mapped files, which a budget does not count."""
    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))


def _lower_priority() -> None:
    """Lower the priority of this thread, so that training goes first; possible on Linux only."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
