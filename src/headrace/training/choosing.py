"""Choosing an execution while training: the first steps are real ones, computed in the ways to be compared.

Steps that are computed in several ways are as good as others: the ways differ in speed and in rounding only. A choice
ends before the first checkpoint is written (run/pretraining.py), so that whatever is resumed goes on in one way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.distributed.replicas import Replica
from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.training.autotune import Search, rows_to_measure
from headrace.training.execution import Execution
from headrace.training.step import StepSeconds, TokenBatch, accumulate


@dataclass(frozen=True)
class Piece:
    """Some rows of a batch and the way in which they were computed."""

    rows: int
    execution: Execution


class TrainingChoice:
    """The search for an execution whose measurements are micro-batches of training."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._began = ProcessorTime.now()
        self._asked = search.measurements()
        self._next = next(self._asked, None)
        self._seconds: dict[Execution, float] = {}
        self.pieces: list[Piece] = []
        """The rows of the newest step that was computed here, and how."""
        self.is_complete = False
        """Whether all measurements were made, and none of them says more about other programs than about the ways."""

    @property
    def best(self) -> Execution:
        """The best way that is known so far."""
        return self._search.best

    @property
    def is_settled(self) -> bool:
        """Whether no more measurements will be made."""
        return self._next is None

    @property
    def seconds_per_sequence(self) -> float | None:
        """The least time of the best way; None where it was not measured."""
        return self._seconds.get(self.best)

    def settle(self) -> None:
        """End the choice with the best way that is known so far."""
        self._asked.close()
        self._next = None

    def measure_all(self, measure: Callable[[Execution], float]) -> None:
        """Make all measurements at once; `measure` returns the seconds per sequence of a way."""
        while self._next is not None:
            self._answer(self._next, measure(self._next))

    def accumulate(self, replica: Replica, batch: TokenBatch, scale: float) -> tuple[float, StepSeconds]:
        """Compute the gradients of a batch as `training.step.accumulate` does, its rows in the ways to be measured.

        Rows at its end that are too few for the next measurement are computed in the best way so far.
        """
        self.pieces = []
        loss, seconds, start = 0.0, StepSeconds(0.0, 0.0), 0
        while start < len(batch.inputs):
            left = len(batch.inputs) - start
            asked = self._next
            rows = left if asked is None else rows_to_measure(asked, *batch.inputs.shape)
            if rows > left:
                asked, rows = None, left
            execution = asked or self.best
            execution.set_threads()
            part, part_seconds = accumulate(replica, batch, execution, scale, range(start, start + rows))
            loss, seconds, start = loss + part, seconds + part_seconds, start + rows
            if asked is not None:
                self._answer(asked, (part_seconds.forward + part_seconds.backward) / rows)
            self.pieces.append(Piece(rows, execution))
        return loss, seconds

    def _answer(self, asked: Execution, seconds: float) -> None:
        self._seconds[asked] = min(seconds, self._seconds.get(asked, seconds))
        try:
            self._next = self._asked.send(seconds)
        except StopIteration:
            self._next = None
            self.is_complete = not is_disturbed(ProcessorTime.now().taken_percent_since(self._began))
