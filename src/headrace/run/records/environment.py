"""environment.json: the machine of a run, and how it computes its steps."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from headrace.run.machine import Machine
from headrace.run.records.record import Figure, Record
from headrace.run.remembered_scaling import Scaling


class Environment(Record):
    """environment.json: the machine of a run, and how it computes its steps."""

    python: str | None = None
    """Version of Python."""
    platform: str | None = None
    """Operating system."""
    processor: str | None = None
    """Name of the processor."""
    cores: int | None = None
    """Physical cores."""
    memory_bytes: int | None = None
    """Memory that the process may use: the machine's, or the limit of its container."""
    threads: int | None = None
    """Threads of the computation."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of headrace and the packages it computes with."""
    peak_flops: Figure = None
    """Measured peak of matrix products of all processes, in FLOP/s."""
    execution: dict[str, Any] | None = None
    """How steps are computed: micro-batch, precision, kernels, threads."""
    activation_bytes_per_token: Figure = None
    """What a forward pass keeps for the backward pass."""
    memory_parts: dict[str, int] | None = None
    """Memory of a process by part, from counts."""
    memory_bandwidth: Figure = None
    """Measured memory bandwidth in bytes per second; null on an accelerator."""
    machine: Machine | None = None
    """What `headrace machine` had measured before the run."""
    scaling: Scaling | None = None
    """What `headrace scale` had measured for this configuration before the run."""
