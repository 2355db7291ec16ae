"""The arguments of a loader that are not options: checked, with errors that a person can act on."""

from __future__ import annotations

import operator
from typing import Any

from headrace.data.config import LoaderOptions
from headrace.errors import UsageError

MAX_QUEUED_BATCHES = 256
MAX_QUEUED_BYTES = 256 << 20


def whole(value: Any) -> Any:
    """Return a whole number of any kind as Python's own: a seed must be the same seed however it was computed."""
    return value if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)


def check_arguments(batch_size: int, sequence_length: int, rank: int, world_size: int) -> None:
    """Refuse sizes and ranks that do not fit together."""
    for name, value in (("batch_size", batch_size), ("sequence_length", sequence_length), ("world_size", world_size)):
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} does not exist: with world_size {world_size} ranks are 0 to {world_size - 1}")
    if batch_size % world_size:
        down = batch_size - batch_size % world_size
        near = f"{down} or {down + world_size}" if down else str(world_size)
        raise UsageError(f"batch_size {batch_size} does not divide among {world_size} ranks; use {near}")


def queue_limit(rows: int, row_bytes: int, options: LoaderOptions) -> int:
    """Return how many batches of `rows` may be held: those asked for, within the bounds in sequences and in bytes.

    Where the depth is chosen by the loader itself, it stays within bounds of its own.
    """
    prefetch, max_sequences, memory_budget = options.depth, options.max_sequences_in_memory, options.memory_budget
    batch_bytes = rows * row_bytes
    limit = max(2, min(MAX_QUEUED_BATCHES, MAX_QUEUED_BYTES // batch_bytes)) if prefetch == "auto" else int(prefetch)
    if max_sequences is not None:
        if max_sequences < rows:
            raise UsageError(f"max_sequences_in_memory {max_sequences} does not hold one batch; use at least {rows}")
        limit = min(limit, max_sequences // rows)
    if memory_budget is not None:
        # Half for what is ready, the other half for what is being made and tokenised.
        if memory_budget // 2 < batch_bytes:
            raise UsageError(
                f"memory_budget {memory_budget:,} bytes is too small: one batch takes {batch_bytes:,} bytes, and the"
                " budget must hold twice that"
            )
        limit = min(limit, memory_budget // 4 // batch_bytes or 1)
    return limit
