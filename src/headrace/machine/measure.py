"""Measurements of this machine, in a few seconds: matrix products, memory, disk, fresh memory."""

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
    """Measured rates in units per second; None where one could not be measured."""

    matmul_flops: dict[str, dict[int, float]]
    """FLOP/s of matrix products by precision and number of threads."""
    memory_bandwidth: float
    """Bytes read and written per second, with all threads."""
    disk_read_rate: float | None
    """Bytes per second read from the disk itself, not from the system's cache."""
    fresh_memory_rate: float
    """Bytes per second of fresh memory that one thread can touch first: the cost of buffers that are mapped anew."""
    busy_cores: float
    """Cores that other processes used just before; above BUSY_CORES the rates may be too low."""
    taken_percent: float | None = None
    """Share of the processor time wanted by the measurement that others had; None where it is not known."""

    def peak_flops(self, precision: str, threads: int) -> float | None:
        """Return the rate at this number of threads, or at the nearest below that was measured."""
        rates = self.matmul_flops.get(precision, {})
        known = [count for count in rates if count <= threads]
        return rates[max(known)] if known else None


def measure(folder: Path, usable_threads: int, seconds: float = 0.3) -> Measurements:
    """Measure everything: the disk of `folder`, and each rate for about `seconds`."""
    began = ProcessorTime.now()
    busy_cores = psutil.cpu_percent(interval=seconds) / 100 * (os.cpu_count() or 1)
    rates: dict[str, dict[int, float]] = {name: {} for name in PRECISIONS}
    for threads in thread_counts(usable_threads):
        with torch_threads(threads):
            for name, dtype in PRECISIONS.items():
                rates[name][threads] = measure_peak_flops(dtype, seconds)
    with torch_threads(usable_threads):
        bandwidth = measure_memory_bandwidth(seconds)
    fresh_memory_rate = measure_fresh_memory_rate()
    taken_percent = ProcessorTime.now().taken_percent_since(began)
    disk_read_rate = measure_disk_read_rate(folder)
    return Measurements(rates, bandwidth, disk_read_rate, fresh_memory_rate, busy_cores, taken_percent)


def thread_counts(most: int) -> list[int]:
    """Return the powers of two up to `most`, and `most` itself.

    >>> thread_counts(6)
    [1, 2, 4, 6]
    """
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def measure_memory_bandwidth(seconds: float = 0.3) -> float:
    """Measure the bytes read and written per second by a = b + c, over arrays that no cache holds."""
    # Mapped, not allocated: an allocator that keeps freed memory would keep these for ever.
    a, b, c = (torch.frombuffer(mmap.mmap(-1, _STREAM_BYTES), dtype=torch.float32) for _ in range(3))
    b.fill_(1), c.fill_(1)  # else both would be the system's single page of zeros
    best_s = float("inf")
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        began = time.perf_counter()
        torch.add(b, c, out=a)
        best_s = min(best_s, time.perf_counter() - began)
    return 3 * _STREAM_BYTES / best_s


def measure_disk_read_rate(folder: Path) -> float | None:
    """Write a file, drop it from the system's cache, and time reading it. None where that is impossible."""
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
    """Measure the bytes per second at which fresh pages can be touched, beyond the cost of touching them again."""
    best_s = float("inf")
    for _ in range(3):
        with mmap.mmap(-1, _FRESH_BYTES) as fresh:
            view = np.frombuffer(fresh, np.uint8)
            times = []
            for _ in range(2):
                began = time.perf_counter()
                view[:: mmap.PAGESIZE] = 1
                times.append(time.perf_counter() - began)
            del view  # a mapping cannot be closed while a view of it exists
        best_s = min(best_s, max(times[0] - times[1], 1e-9))
    return _FRESH_BYTES / best_s


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Compute with this number of threads inside a `with`, and with as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
