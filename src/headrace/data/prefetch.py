"""Batches made ahead of time by worker threads, handed out strictly in order, in bounded number."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from headrace.data.batch import Batch
from headrace.errors import WorkerError

Make = Callable[[int, int], list[Batch]]

# A wait this short is the cost of handing over, not a lack of batches.
REAL_WAIT_S = 0.0002
MAX_RUN = 16
ASK_SECONDS = 0.2  # the time between two calls of `while_waiting`


class Inline:
    """A queue without threads: a batch is made when it is asked for."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self.while_waiting: Callable[[], None] = lambda: None
        self._cpu_s = 0.0

    def take(self, step: int) -> Batch:
        began_s = time.thread_time()
        batch = self._make(step, 1)[0]
        self._cpu_s += time.thread_time() - began_s
        return batch

    def seek(self, step: int) -> None:
        pass

    def holding(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def cpu_seconds(self) -> float:
        return self._cpu_s

    @property
    def is_lost(self) -> bool:
        """Whether the process was forked and the threads stayed behind; here, there are none."""
        return False

    def stop(self) -> None:
        pass

    def join(self) -> None:
        pass


class Prefetcher:
    """A queue that workers fill, each with a run of consecutive steps: one lock and one large gather serve several.

    At most `depth` batches are ready or being made. While the consumer really waits, `depth` doubles, up to `grow_to`.
    """

    def __init__(self, make: Make, num_workers: int, depth: int, grow_to: int) -> None:
        self._make = make
        self._num_workers = num_workers
        self._depth = depth
        self._grow_to = max(grow_to, depth)
        self.while_waiting: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._ready: dict[int, list[Batch] | BaseException] = {}
        self._current: deque[Batch] = deque()
        self._next = 0  # the first step that no worker has taken
        self._consumed = 0
        self._generation = 0  # a seek makes what is being made worthless
        self._stopping = False
        self._cpu_s: dict[int, float] = {}
        self._threads: list[threading.Thread] = []
        self._started_by: int | None = None  # the process

    def take(self, step: int) -> Batch:
        """Return the batch of a step; steps must be taken in order (or after `seek`)."""
        if self._current:
            self._consumed = step + 1
            return self._current.popleft()
        asked_s = time.perf_counter()
        with self._changed:
            if not self._threads:
                self._start()
            self._consumed = step
            self._changed.notify_all()
            must_wait = step not in self._ready
            while step not in self._ready:
                if self._stopping:
                    raise RuntimeError("the loader is closed")
                self.while_waiting()
                self._changed.wait(ASK_SECONDS)
            made = self._ready.pop(step)
            if isinstance(made, BaseException):
                self._ready[step] = made  # it will be there again if the consumer asks again
                if isinstance(made, MemoryError | OSError):
                    raise WorkerError(
                        f"a loader worker failed at step {step} ({type(made).__name__}: {made}). What was saved before"
                        " is intact; if memory ran out, set data.memory_budget or fewer data.num_workers."
                    ) from made
                raise made
            if must_wait and time.perf_counter() - asked_s > REAL_WAIT_S and step > 0:
                self._depth = min(2 * self._depth, self._grow_to)
            self._consumed = step + 1
            self._changed.notify_all()
        self._current.extend(made)
        return self._current.popleft()

    def seek(self, step: int) -> None:
        """Drop the batches that are ready, and continue at another step."""
        with self._changed:
            self._generation += 1
            self._ready.clear()
            self._current.clear()
            self._next = self._consumed = step
            self._changed.notify_all()

    def holding(self) -> tuple[int, int, int]:
        """Return how many batches are ready, how many may be, and the bytes of those that are."""
        with self._changed:
            made = [batch for run in self._ready.values() if isinstance(run, list) for batch in run]
            made += self._current
            return len(made), self._depth, sum(batch.nbytes for batch in made)

    def cpu_seconds(self) -> float:
        return sum(self._cpu_s.values())

    @property
    def is_lost(self) -> bool:
        """Whether the process was forked and the threads stayed behind."""
        return self._started_by not in (None, os.getpid())

    def stop(self) -> None:
        """Let workers end; what they are doing is not waited for."""
        if self.is_lost:  # a lock that one of them held would never be free
            return
        with self._changed:
            self._stopping = True
            self._ready.clear()
            self._current.clear()
            self._changed.notify_all()

    def join(self) -> None:
        for thread in [] if self.is_lost else self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _start(self) -> None:
        self._started_by = os.getpid()
        for number in range(self._num_workers):
            thread = threading.Thread(target=self._work, args=(number,), name=f"headrace-load-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self, number: int) -> None:
        while True:
            with self._changed:
                while not self._stopping and self._next - self._consumed >= self._depth:
                    self._changed.wait()
                if self._stopping:
                    return
                step, generation = self._next, self._generation
                room = self._depth - (self._next - self._consumed)
                count = max(1, min(room, self._depth // (2 * self._num_workers), MAX_RUN))
                self._next += count
            made, failure = self._make_run(step, count)
            self._cpu_s[number] = time.thread_time()
            with self._changed:
                if generation == self._generation and not self._stopping:
                    if made:
                        self._ready[step] = made
                    if failure is not None:
                        self._ready[step + len(made)] = failure
                    self._changed.notify_all()
                if failure is not None:
                    # Nothing after a failure can be served; wait to be sought elsewhere or stopped.
                    while generation == self._generation and not self._stopping:
                        self._changed.wait()

    def _make_run(self, step: int, count: int) -> tuple[list[Batch], BaseException | None]:
        """Make the batches of consecutive steps, as far as it goes, and return what then went wrong.

        Together is faster. If that fails, they are made one by one: the batches before the failure are good.
        """
        try:
            return self._make(step, count), None
        except BaseException as problem:
            if count == 1:
                return [], problem
        made: list[Batch] = []
        for one in range(step, step + count):
            try:
                made += self._make(one, 1)
            except BaseException as problem:
                return made, problem
        return made, None


def make_queue(make: Make, num_workers: int, depth: int | Literal["auto"], limit: int) -> Inline | Prefetcher:
    """Return a queue of at most `limit` batches; without workers or depth, one that makes a batch when asked."""
    if depth == 0 or num_workers == 0:
        return Inline(make)
    return Prefetcher(make, num_workers, min(2, limit) if depth == "auto" else limit, grow_to=limit)
