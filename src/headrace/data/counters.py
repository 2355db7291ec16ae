"""What a loader counts while it serves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Totals of what a loader has done so far."""

    batches: int = 0
    tokens: int = 0
    wait_s: float = 0.0
    """Time that the consumer waited for batches."""
    last_wait_s: float = 0.0
    """Time that it waited for the newest batch."""
    elapsed_s: float = 0.0
    """Time since the first batch was asked for."""
    wait_percent: float = 0.0
    """Share of the elapsed time that was spent waiting for batches."""
    queue_depth: int = 0
    """Batches that are ready."""
    queue_limit: int = 0
    """Most batches that may be ready; grows while training waits with `prefetch_batches: auto`."""
    bytes_held: int = 0
    """Memory of the batches that are ready."""
    worker_cpu_s: float = 0.0
    """Processor time of the workers, tokenising included."""
