"""The number of threads while others use the processor too: fewer where that is faster, all again when there is room.

Threads wait for the slowest of them after every operation, so one that another program displaces delays all. How much
depends on the other programs and on how threads wait (machine/waiting.py), so it is measured: on training itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.machine.contention import ProcessorTime
from headrace.units import plural

WINDOW_S, WINDOW_STEPS = 1.0, 3
"""A window is judged when it is this long and has this many steps."""
FASTER = 0.9
"""Share of the present time per step that another number of threads must stay below to be kept: the rest is noise."""
TAKEN_PERCENT = 20.0
"""Share of the wanted processor time that others must have before fewer threads are tried."""
PATIENCE_S, PATIENCE_WINDOWS = 10.0, 2
"""Time and windows in a row that must call for another number of threads before it is tried: whoever passes by changes
nothing, for another number also changes rounding."""
FIRST_PAUSE, LONGEST_PAUSE = 60, 960
"""Windows without another trial after one that was no use; twice as many each time. One of 60 may be slower by half:
1% of a run at most."""
ROOM = 0.5
"""Cores that must be idle, for each thread that is to be added, before more threads are tried."""


@dataclass(frozen=True)
class Window:
    """What was seen during some steps that were computed with the same number of threads."""

    step_s: float
    """Median time of a step."""
    taken_percent: float | None
    """Share of the processor time wanted by this process that others had instead; None where it is unknown."""
    idle_cores: float
    """Cores that nobody used, on average."""
    wall_s: float = WINDOW_S
    """How long it was."""


class ThreadPolicy:
    """Decides the number of threads from one window to the next. It looks at no clock: windows in, threads out.

    >>> policy = ThreadPolicy(most=2)
    >>> busy = Window(step_s=4.0, taken_percent=50.0, idle_cores=0.0)
    >>> [policy.next(busy) for _ in range(10)]
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 1]
    >>> policy.next(Window(step_s=2.0, taken_percent=0.0, idle_cores=0.0)), policy.is_trial  # it was worth it
    (1, False)
    """

    def __init__(self, most: int, threads: int = 0) -> None:
        """`most`: threads on a machine that nobody else uses. `threads`: those at the beginning, if fewer."""
        self._most = most
        self.threads = threads or most
        self._before: tuple[int, float] | None = None
        self._calls, self._called_s = 0, 0.0
        self._wait, self._pause = 0, FIRST_PAUSE

    @property
    def is_trial(self) -> bool:
        """Whether the present number of threads is being tried."""
        return self._before is not None

    def next(self, window: Window) -> int:
        """Return the number of threads after a window."""
        if self._before is not None:
            self._judge(self._before, window)
        else:
            self._consider(window)
        return self.threads

    def _judge(self, before: tuple[int, float], window: Window) -> None:
        """Keep the number of threads that was tried if it is faster; if not, go back and try again later."""
        self._before, self._calls, self._called_s = None, 0, 0.0
        threads, step_s = before
        if window.step_s < FASTER * step_s:
            self._wait, self._pause = 0, FIRST_PAUSE
            return
        self.threads = threads
        self._wait, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)

    def _consider(self, window: Window) -> None:
        """Begin a trial if several windows in a row call for one, and the last one in vain is long enough ago."""
        self._wait -= 1
        wanted = self._wanted(window)
        if wanted == self.threads:
            self._calls, self._called_s = 0, 0.0
            return
        self._calls, self._called_s = self._calls + 1, self._called_s + window.wall_s
        if self._calls >= PATIENCE_WINDOWS and self._called_s >= PATIENCE_S and self._wait < 0:
            self._before = self.threads, window.step_s
            self.threads = wanted

    def _wanted(self, window: Window) -> int:
        """Return half the threads where others are in the way, twice as many where there is room for them."""
        if self.threads < self._most:
            more = min(2 * self.threads, self._most)
            if window.idle_cores >= ROOM * (more - self.threads):
                return more
        if self.threads > 1 and (window.taken_percent or 0.0) > TAKEN_PERCENT:
            return self.threads // 2
        return self.threads


class ThreadControl:
    """The owner of the number of threads while a run trains: steps in, threads for the next one out.

    A number of threads changes rounding. Steps that an earlier session of the run has computed are therefore repeated
    with the threads that it had; only then the policy begins.
    """

    def __init__(
        self,
        policy: ThreadPolicy,
        repeated: Mapping[int, int] | None = None,
        read: Callable[[], ProcessorTime] = ProcessorTime.now,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`repeated`: threads by the first step that an earlier session computed with them."""
        self._policy, self._read, self._clock = policy, read, clock
        self._repeated = dict(repeated or {})
        self._settled = policy.threads
        self._has_told = False
        self._tried: int | None = None
        self._begin()

    def next(self, step: int, step_s: float) -> int:
        """Return the number of threads of the step after this one, which took `step_s` seconds."""
        if self._repeated:
            self._policy.threads = self._settled = self._repeated.pop(step + 1, self._policy.threads)
            self._repeated = {first: threads for first, threads in self._repeated.items() if first > step + 1}
            self._begin()
            return self._policy.threads
        self._seconds.append(step_s)
        wall_s = self._clock() - self._began
        if wall_s < WINDOW_S or len(self._seconds) < WINDOW_STEPS:
            return self._policy.threads
        now = self._read()
        idle_cores = (now.idle_s - self._reading.idle_s) / wall_s
        taken_percent = now.taken_percent_since(self._reading)
        threads = self._policy.next(Window(statistics.median(self._seconds), taken_percent, idle_cores, wall_s))
        self._begin(now)
        return threads

    def take_notice(self) -> str | None:
        """Return, once and after the first trial of fewer threads, that others use the processor and what was done."""
        if self._policy.is_trial:
            self._tried = self._policy.threads
            return None
        tried, self._tried = self._tried, None
        before, self._settled = self._settled, self._policy.threads
        if self._has_told or tried is None or tried > before:
            return None
        self._has_told = True
        done = (
            f"{plural(tried, 'thread')} instead of {before}"
            if tried == self._settled
            else (f"{before} threads as before, because {tried} measured no faster")
        )
        return f"other programs use the processor: computing with {done}"

    def _begin(self, reading: ProcessorTime | None = None) -> None:
        """Begin a window."""
        self._seconds: list[float] = []
        self._began = self._clock()
        self._reading = reading or self._read()
