"""The way to compute steps that was chosen for a network on this machine, and whether it still holds."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass

from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.machine.hardware import find_hardware
from headrace.native.library import ABI, instructions
from headrace.run.config import Config
from headrace.run.execution.store import Remembered
from headrace.stages import Stage
from headrace.training.autotune import Search
from headrace.training.execution import Execution
from headrace.training.loop import StepInfo

JUDGED_STEPS = 8
"""Steps from which the speed of a run is judged."""
SLOWER = 1.5
"""Times the remembered time per sequence beyond which a run is clearly slower than it was when that was measured."""


@dataclass(frozen=True)
class ChosenExecution:
    """An execution that was chosen by measurement."""

    execution: Execution
    seconds_per_sequence: float
    """Time of its forward and backward passes when it was chosen."""
    chosen_on: str
    """The day."""

    @classmethod
    def today(cls, execution: Execution, seconds_per_sequence: float) -> ChosenExecution:
        """Build the record of a choice that was made just now."""
        return cls(execution, seconds_per_sequence, time.strftime("%Y-%m-%d"))


def remembered_execution(config: Config, search: Search) -> Remembered[ChosenExecution]:
    """Return the place of a choice: of a machine, its torch and native library, a network, a batch, and the ways.

    Threads, memory limits and what the configuration sets are in the ways.
    """
    training = config.training
    return Remembered(
        ChosenExecution,
        "executions",
        {
            "machine": find_hardware().fingerprint,
            "native": [ABI, instructions()],
            "model": config.model.shape(),
            "batch": [training.batch_size, training.sequence_length, config.data.packing, training.memory_budget],
            "pieces": training.pieces,
            "logits": training.num_logits(config.model.vocab_size),
            "processes": config.run.processes,
            "sharding": config.run.sharding,
            "ways": [asdict(way) for way in search.ways],
        },
    )


class PaceCheck:
    """Compares the first steps of a run with the speed that is remembered of its execution."""

    def __init__(self, place: Remembered[ChosenExecution], chosen: ChosenExecution, num_rows: int) -> None:
        self._place, self._chosen, self._num_rows = place, chosen, num_rows
        self._began = ProcessorTime.now()
        self._seconds: list[float] = []

    def add(self, info: StepInfo) -> str | None:
        """Add a step; once, where steps are clearly slower than remembered, forget the choice and return a warning."""
        if len(self._seconds) >= JUDGED_STEPS:
            return None
        passes_s = info.seconds[Stage.FORWARD] + info.seconds[Stage.BACKWARD]
        self._seconds.append(passes_s / self._num_rows)
        if len(self._seconds) < JUDGED_STEPS:
            return None
        slower = statistics.median(self._seconds) / self._chosen.seconds_per_sequence
        if slower < SLOWER or is_disturbed(ProcessorTime.now().taken_percent_since(self._began)):
            return None
        self._place.forget()
        return (
            f"steps take {slower:.1f} times as long as when this way of computing them was chosen"
            f" ({self._chosen.chosen_on}), though no other program takes the processor. The choice is forgotten: the"
            " next run measures again."
        )
