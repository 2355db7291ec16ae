"""What a loader counts while it serves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Totals of what a loader has done. `wait` is the time that the consumer really stood still for a batch."""

    batches: int = 0
    tokens: int = 0
    wait_s: float = 0.0
    last_wait_s: float = 0.0
    elapsed_s: float = 0.0
    wait_percent: float = 0.0
    queue_depth: int = 0
    """Batches that are ready."""
    queue_limit: int = 0
    """Batches that may be ready; grows by itself with `prefetch_batches: auto`."""
    bytes_held: int = 0
    worker_cpu_s: float = 0.0
    """Processor time of the workers, tokenising included."""
