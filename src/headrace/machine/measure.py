"""What this machine can do, measured in a few seconds: matrix products, memory, disk, fresh memory."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from headrace.machine.contention import ProcessorTime
from headrace.machine.peak import measure_peak_flops

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_STREAM_BYTES = 32 << 20  # each of three arrays; together more than the caches of a small machine
_DISK_BYTES = 64 << 20
_FRESH_BYTES = 32 << 20
BUSY_CORES = 0.1


@dataclass(frozen=True)
class Measurements:
    """Rates in units per second. None: could not be measured here."""

    matmul_flops: dict[str, dict[int, float]]
    """By precision and number of threads."""
    memory_bandwidth: float
    """Bytes read and written, with all threads."""
    disk_read_rate: float | None
    """Bytes read that the system did not hold in memory."""
    fresh_memory_rate: float
    """Bytes of never used memory that one thread can touch; buffers that are mapped anew each time cost this."""
    busy_cores: float
    """What other processes used of the processor just before; above BUSY_CORES the rates may be too low."""
    taken_percent: float | None = None
    """Share of the processor time that the measurement wanted and others had; None where the system does not say."""

    def peak_flops(self, precision: str, threads: int) -> float | None:
        """The rate at this number of threads, or at the nearest below."""
        rates = self.matmul_flops.get(precision, {})
        known = [count for count in rates if count <= threads]
        return rates[max(known)] if known else None


def measure(folder: Path, usable_threads: int, seconds: float = 0.3) -> Measurements:
    """Measure everything; `folder` says which disk, `seconds` how long each rate may take."""
    began = ProcessorTime.now()
    busy_cores = psutil.cpu_percent(interval=seconds) / 100 * (os.cpu_count() or 1)
    rates: dict[str, dict[int, float]] = {name: {} for name in PRECISIONS}
    for threads in thread_counts(usable_threads):
        with _torch_threads(threads):
            for name, dtype in PRECISIONS.items():
                rates[name][threads] = measure_peak_flops(dtype, seconds)
    with _torch_threads(usable_threads):
        bandwidth = measure_memory_bandwidth(seconds)
    fresh_memory_rate = measure_fresh_memory_rate()
    taken_percent = ProcessorTime.now().taken_percent_since(began)
    disk_read_rate = measure_disk_read_rate(folder)
    return Measurements(rates, bandwidth, disk_read_rate, fresh_memory_rate, busy_cores, taken_percent)


def thread_counts(most: int) -> list[int]:
    """1, 2, 4 and so on, and all.

    >>> thread_counts(6)
    [1, 2, 4, 6]
    """
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def measure_memory_bandwidth(seconds: float = 0.3) -> float:
    """a = b + c over arrays that no cache holds: bytes read and written per second."""
    # Mapped, not allocated: an allocator that keeps what is freed would keep these for ever.
    a, b, c = (torch.frombuffer(mmap.mmap(-1, _STREAM_BYTES), dtype=torch.float32) for _ in range(3))
    b.fill_(1), c.fill_(1)  # or both would be the system's one page of zeros
    best_s = float("inf")
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        began = time.perf_counter()
        torch.add(b, c, out=a)
        best_s = min(best_s, time.perf_counter() - began)
    return 3 * _STREAM_BYTES / best_s


def measure_disk_read_rate(folder: Path) -> float | None:
    """Write a file, have the system forget it, read it. None where it cannot be told to forget, or not be written."""
    if not hasattr(os, "posix_fadvise"):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            block = os.urandom(1 << 20)
            for _ in range(_DISK_BYTES >> 20):
                file.write(block)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            buffer = bytearray(1 << 20)
            began = time.perf_counter()
            while file.readinto(buffer):
                pass
            return _DISK_BYTES / (time.perf_counter() - began)
    except OSError:
        return None


def measure_fresh_memory_rate() -> float:
    """What the first touch of a page costs, over what touching it again costs."""
    best_s = float("inf")
    for _ in range(3):
        with mmap.mmap(-1, _FRESH_BYTES) as fresh:
            view = np.frombuffer(fresh, np.uint8)
            times = []
            for _ in range(2):
                began = time.perf_counter()
                view[:: mmap.PAGESIZE] = 1
                times.append(time.perf_counter() - began)
            del view  # the mapping cannot be closed while it is looked at
        best_s = min(best_s, max(times[0] - times[1], 1e-9))
    return _FRESH_BYTES / best_s


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
