"""Threads that tell trackers what happens: whatever a tracker does, training neither stops nor waits."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headrace.run.config import Config
from headrace.run.trackers.tracker import TrackedRun, Tracker, make_tracker, read_identity

MOST_WAITING = 1000
"""Events that wait for a slow tracker at most; the next ones are left out."""
PATIENCE_S = 10.0
"""Time that the end of a run waits for a tracker to finish."""


def open_trackers(config: Config, folder: Path, num_steps: int = 0) -> list[TrackerThread]:
    """Open the trackers that a configuration names; a missing package is an error before anything trains.

    `num_steps`: updates that were done before the run was resumed.
    """
    names = dict.fromkeys([*config.run.trackers, *(["tensorboard"] if config.run.tensorboard else [])])
    trackers = {name: make_tracker(name, folder) for name in names}
    threads = [TrackerThread(name, tracker) for name, tracker in trackers.items()]
    if threads:
        run = TrackedRun(folder, config.model_dump(mode="json"), read_identity(folder), num_steps)
        for thread in threads:
            thread.tell(lambda tracker: tracker.begin(run))
    return threads


class TrackerThread:
    """A tracker in a thread of its own, behind a bounded queue. A failed one is left alone after one warning."""

    def __init__(
        self, name: str, tracker: Tracker, most_waiting: int = MOST_WAITING, patience_s: float = PATIENCE_S
    ) -> None:
        self._name, self._tracker, self._patience_s = name, tracker, patience_s
        self._events: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(most_waiting)
        self._num_left_out = 0
        self._failure = ""
        self._has_warned = self._is_closed = False
        self._thread = threading.Thread(target=self._tell, name=f"headrace-{name}", daemon=True)
        self._thread.start()

    def tell(self, event: Callable[[Tracker], None]) -> None:
        """Have the tracker told of something soon; it is left out if too much waits already."""
        if self._failure:
            return
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._num_left_out += 1

    def close(self) -> None:
        """End the tracker after everything it was told; one that does not finish in time is left behind."""
        if self._is_closed:
            return
        self._is_closed = True
        ends = time.monotonic() + self._patience_s
        for event in (_end, None):
            while self._thread.is_alive():
                try:
                    self._events.put(event, timeout=min(0.1, max(0.0, ends - time.monotonic())))
                    break
                except queue.Full:
                    if time.monotonic() >= ends:
                        break
        self._thread.join(max(0.0, ends - time.monotonic()))
        if self._thread.is_alive() and not self._failure:
            self._failure = f"did not finish within {self._patience_s:g} s, and was left behind"

    def warning(self) -> str:
        """Return a warning for the user if there is one that was not returned before."""
        if self._has_warned or not (self._failure or self._num_left_out):
            return ""
        self._has_warned = True
        if self._failure:
            return f"{self._name}: {self._failure}. Training goes on without it."
        return f"{self._name}: is slower than training. Steps that it has no time for are left out."

    def _tell(self) -> None:
        try:
            while (event := self._events.get()) is not None:
                event(self._tracker)
        except OSError as problem:
            self._failure = f"cannot be written ({problem.strerror or problem})"
        except BaseException as problem:  # of somebody else's package: some raise SystemExit
            said = str(problem).strip().splitlines()
            self._failure = f"failed ({type(problem).__name__}: {said[0][:200] if said else 'no message'})"
        if self._failure:
            with suppress(BaseException):  # whatever it says to its end, it has failed already
                self._tracker.end()


def _end(tracker: Tracker) -> None:
    tracker.end()
