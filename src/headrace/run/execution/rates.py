"""The peak and the memory bandwidth of this machine, as far as runs measured them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.machine.hardware import find_hardware
from headrace.run.execution.store import Remembered
from headrace.training.execution import Execution


@dataclass(frozen=True)
class Rates:
    """Measured rates of one process, in units per second."""

    peak_flops: float
    """FLOP/s of matrix products."""
    memory_bandwidth: float | None
    """Bytes read and written; None on an accelerator."""


def remembered_rates(execution: Execution) -> Remembered[Rates]:
    """Return the place of the rates with the precision and the threads of an execution."""
    depends_on = {
        "machine": find_hardware().fingerprint,
        "precision": execution.precision,
        "threads": execution.threads,
    }
    return Remembered(Rates, "rates", depends_on)
