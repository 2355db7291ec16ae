"""Contention: the processor time that other programs took while this process wanted it. Known on Linux only."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_THREADS = Path("/proc/self/task")
DISTURBED_PERCENT = 10.0
"""The share above which a measurement says more about other programs than about what was measured."""


@dataclass(frozen=True)
class ProcessorTime:
    """Processor times in seconds; only differences between two readings mean something."""

    own_s: float
    """Processor time of this process."""
    delayed_s: float | None
    """Time that its threads were ready to run and had no core. None where the system does not say."""
    busy_s: float
    """Processor time of all processes on the cores that this one may use."""
    stolen_s: float = 0.0
    """Time that the host of a virtual machine gave to others."""
    idle_s: float = 0.0
    """Time that nobody used, on the cores that this process may use."""

    @classmethod
    def now(cls) -> ProcessorTime:
        """Read the clocks."""
        cores = psutil.cpu_times(percpu=True)
        if hasattr(os, "sched_getaffinity"):
            cores = [core for number, core in enumerate(cores) if number in os.sched_getaffinity(0)]
        stolen_s = sum(getattr(core, "steal", 0.0) for core in cores)
        idle_s = sum(core.idle + getattr(core, "iowait", 0.0) for core in cores)
        # Fields that are parts of others, on Linux: user has guest in it.
        every = sum(sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0) for core in cores)
        busy_s = round(every - idle_s - stolen_s, 2)  # the clocks count hundredths: sums must not run backwards
        return cls(time.process_time(), _delayed_s(), busy_s, stolen_s, idle_s)

    def taken_percent_since(self, before: ProcessorTime) -> float | None:
        """Return the share of the processor time wanted by this process since `before` that others had instead.

        Its own threads may have waited for each other, so no more counts than others really used.

        >>> then, now = ProcessorTime(0.0, 0.0, 0.0), ProcessorTime(own_s=2.0, delayed_s=6.0, busy_s=4.0)
        >>> now.taken_percent_since(then)
        50.0
        """
        if self.delayed_s is None or before.delayed_s is None:
            return None
        own_s = self.own_s - before.own_s
        busy_s = max(self.busy_s - before.busy_s, own_s)
        taken_s = max(0.0, min(self.delayed_s - before.delayed_s, busy_s - own_s))
        if busy_s > 0:
            taken_s += (self.stolen_s - before.stolen_s) * own_s / busy_s
        return 100 * taken_s / max(own_s + taken_s, 1e-9)


def is_disturbed(taken_percent: float | None) -> bool:
    """Return whether other programs had so much of the processor that a measurement is worthless."""
    return taken_percent is not None and taken_percent > DISTURBED_PERCENT


def _delayed_s() -> float | None:
    total_ns = 0
    try:
        threads = list(_THREADS.iterdir())
    except OSError:
        return None
    for thread in threads:
        try:
            total_ns += int((thread / "schedstat").read_text(encoding="utf-8").split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        except (OSError, ValueError, IndexError):
            return None
    return total_ns / 1e9
