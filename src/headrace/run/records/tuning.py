"""tune.json: what `headrace tune` measured."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from headrace.run.records.record import Figure, Record


class FindingRecord(Record):
    """What `headrace tune` found out about one change: a part of tune.json."""

    changes: dict[str, Any]
    """New values by key."""
    gain_percent: Figure
    """Tokens/s gained; null where it could not be measured."""
    spread_percent: Figure
    """How far a second measurement of the gain may be off."""
    memory_change_bytes: int | None = None
    """Change of the peak memory; negative where memory is saved."""
    changes_result: bool
    """Whether training would end in another model."""
    is_taken: bool = False
    """Whether the tuned configuration has the change."""
    note: str
    """Why the change could not be measured, or what else to know about it."""


class TuningRecord(Record):
    """tune.json, and what `tune --json` prints."""

    tokens_per_second: float | None = None
    """Throughput of the given configuration."""
    tuned_tokens_per_second: float | None = None
    """Throughput of the tuned configuration."""
    gain_percent: Figure = None
    """Tokens/s gained by all changes that were taken."""
    spread_percent: Figure = None
    """How far a second measurement of the gain may be off."""
    best_batch_size: int | None = None
    """Batch size beyond which throughput grows no more; null if no other was measured or fits the memory."""
    peak_memory_bytes: int | None = None
    """Peak memory of the tuned configuration."""
    seconds: float | None = None
    """Time that measuring took."""
    findings: list[FindingRecord]
    """Every change that was tried."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """New values by key of the changes that were taken."""
