"""The environment of a run, and the memory and processor time that this process has used."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from headrace.machine.hardware import processor_name, usable_memory_bytes

PACKAGES = ("headrace", "torch", "numpy", "gigatoken", "tokenizers", "safetensors", "pyarrow")


def environment() -> dict[str, Any]:
    """Return versions and machine, for the run directory."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "memory_bytes": usable_memory_bytes(),
        "threads": torch.get_num_threads(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }


def peak_memory_bytes() -> int:
    """Return the most memory that this process has had resident at once."""
    try:
        # Not getrusage: a new process inherits the peak of its parent there.
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(peak) if sys.platform == "darwin" else int(peak) * 1024
    except ImportError:
        return int(psutil.Process().memory_info().peak_wset)


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


@dataclass(frozen=True)
class ProcessTimes:
    """Wall, user and system time in seconds, as the shell's `time` shows them; ended children are included."""

    wall_s: float
    user_s: float
    system_s: float

    @classmethod
    def now(cls) -> ProcessTimes:
        """Return the times up to now; only differences of them mean anything."""
        times = os.times()
        user_s, system_s = times.user + times.children_user, times.system + times.children_system
        return cls(time.perf_counter(), user_s, system_s)

    def since(self, earlier: ProcessTimes) -> ProcessTimes:
        """Return what has passed since an earlier moment."""
        user_s, system_s = self.user_s - earlier.user_s, self.system_s - earlier.system_s
        return ProcessTimes(self.wall_s - earlier.wall_s, user_s, system_s)


def cpu_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    times = os.times()  # its own times have a resolution of 10 ms
    return time.process_time() + times.children_user + times.children_system
