"""Ranges of remote files: fetched in parallel by a few threads, retried with growing pauses, resumed where cut off."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, TimeoutError
from contextlib import contextmanager
from typing import TypeVar

from headrace.data.corpus.remote.addresses import split_address
from headrace.data.corpus.remote.patience import current_patience
from headrace.data.corpus.remote.registry import open_store
from headrace.data.corpus.remote.store import Entry, Failure, Store
from headrace.errors import CorpusError

NUM_THREADS = 16
"""Requests under way at once, over all files."""
PROGRESS_BYTES = 64 << 10
"""Bytes that an attempt must bring so as not to count as one that failed."""
_POLL_S = 0.1

Check = Callable[[], bool]
T = TypeVar("T")


class Stopped(CorpusError):  # noqa: N818 - a way out, not an error
    """Raised in a reader whose work is no longer wanted."""


class _Stop(threading.local):
    check: Check | None = None


_stop = _Stop()


@contextmanager
def stopping_when(check: Check) -> Iterator[None]:
    """Make what this thread reads from remote files end early (`Stopped`) once `check` returns true."""
    before, _stop.check = _stop.check, check
    try:
        yield
    finally:
        _stop.check = before


def current_check() -> Check:
    """Return what tells this thread to stop reading."""
    return _stop.check or (lambda: False)


def failed(address: str, failure: Failure) -> CorpusError:
    """Return the error that tells a user of a failure."""
    remedy = f" {failure.remedy}." if failure.remedy else ""
    return CorpusError(f"{address}: {failure.what}.{remedy}")


def patiently(address: str, attempt: Callable[[Store], T], is_stopped: Check | None = None) -> T:
    """Return what an attempt at a store returns; it is repeated, after growing pauses, while it may yet succeed."""
    is_stopped = is_stopped or current_check()
    failures = 0
    while True:
        try:
            return attempt(open_store(split_address(address).store))
        except Failure as failure:
            failures += 1
            _pause_or_give_up(address, failure, failures, is_stopped)


def fetch(address: str, entry: Entry, begin: int, end: int, is_stopped: Check) -> bytes:
    """Return the bytes [begin, end) of a file. What came before a connection was cut is not fetched again."""
    parts: list[bytes] = []
    place = counted = begin
    failures = 0
    while place < end:
        try:
            for part in open_store(split_address(address).store).read(entry, place, end):
                parts.append(part)
                place += len(part)
                if is_stopped():
                    raise Stopped(f"{address}: no longer wanted.")
        except Failure as failure:
            failures = 1 if place - counted >= PROGRESS_BYTES else failures + 1
            counted = place
            _pause_or_give_up(address, failure, failures, is_stopped)
    return b"".join(parts)


def _pause_or_give_up(address: str, failure: Failure, failures: int, is_stopped: Check) -> None:
    patience = current_patience()
    if not failure.may_pass:
        raise failed(address, failure) from None
    if failures >= patience.attempts:
        what = f"{failure.what}, {failures} times in a row"
        raise failed(address, Failure(what, failure.remedy)) from None
    until = time.monotonic() + patience.pause_s(failures, random.random())
    while (left := until - time.monotonic()) > 0:
        if is_stopped():
            raise Stopped(f"{address}: no longer wanted.")
        time.sleep(min(left, _POLL_S))


class _Pool:
    """Threads that fetch. They are daemons, so that a server that stalls does not keep a program from ending."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Future[bytes], Callable[[], bytes]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = self._num_busy = 0

    def submit(self, task: Callable[[], bytes]) -> Future[bytes]:
        """Have a task done by the next free thread."""
        future: Future[bytes] = Future()
        with self._lock:
            self._num_busy += 1
            if self._num_threads < min(self._num_busy, NUM_THREADS):
                self._num_threads += 1
                threading.Thread(target=self._run, name="headrace-fetch", daemon=True).start()
        self._work.put((future, task))
        return future

    def _run(self) -> None:
        while True:
            future, task = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except BaseException as problem:
                    future.set_exception(problem)
            with self._lock:
                self._num_busy -= 1
            del future, task  # or an idle thread would keep the last bytes


_pool = _Pool()


def _begin_anew() -> None:
    """Replace the pool in a forked process: its threads exist in the parent only, and its lock may be held there."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def fetch_soon(address: str, entry: Entry, begin: int, end: int, is_stopped: Check) -> Future[bytes]:
    """Begin to fetch bytes of a file in another thread."""
    return _pool.submit(lambda: fetch(address, entry, begin, end, is_stopped))


def wait_for(future: Future[bytes], address: str, is_stopped: Check) -> bytes:
    """Return fetched bytes once they are there; raise the error that fetching ended with."""
    while True:
        try:
            return future.result(timeout=_POLL_S)
        except TimeoutError:
            if is_stopped():
                raise Stopped(f"{address}: no longer wanted.") from None
        except CancelledError:
            raise Stopped(f"{address}: no longer wanted.") from None
