"""Choosing an execution while training: the first steps are real ones, computed in the ways to be compared.

Steps that are computed in several ways are as good as others: the ways differ in speed and in rounding only. How each
of them was computed is written down (run/execution/log.py), and a run that is resumed computes them in the same ways.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from headrace.distributed.replicas import Replica
from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.training.autotune import Search
from headrace.training.execution import Execution
from headrace.training.showing.presentation import AS_IT_IS, Presentation, TokenBatch
from headrace.training.step import StepSeconds, accumulate
from headrace.training.ways.alternatives import rows_to_measure
from headrace.training.ways.memory import Demand


@dataclass(frozen=True)
class Piece:
    """Some rows of a batch and the way in which they were computed."""

    rows: Annotated[int, Field(ge=1)]
    execution: Execution


class TrainingChoice:
    """The search for an execution whose measurements are micro-batches of training."""

    def __init__(
        self, search: Search, repeated: Sequence[Sequence[Piece]] = (), final: Execution | None = None
    ) -> None:
        """`repeated`: the ways of steps that come first, because an earlier session of the run computed them so.

        `final`: what that session chose in the end, which leaves nothing to choose.
        """
        self._search, self._final = search, final
        self._repeated = deque(repeated)
        self._began = ProcessorTime.now()
        self._asked = search.measurements()
        self._next = next(self._asked, None) if final is None else None
        self._seconds: dict[Execution, float] = {}
        self.pieces: list[Piece] = []
        """The rows of the newest step that was computed here, and how."""
        self.is_complete = False
        """Whether all measurements were made, and none of them says more about other programs than about the ways."""

    @property
    def best(self) -> Execution:
        """The best way that is known so far."""
        return self._final or self._search.best

    @property
    def newest(self) -> Execution:
        """The way in which the last rows of the newest step were computed."""
        return self.pieces[-1].execution

    @property
    def is_settled(self) -> bool:
        """Whether no step is left to repeat, and no measurement to make."""
        return self._next is None and not self._repeated

    @property
    def seconds_per_sequence(self) -> float | None:
        """The least time of the best way; None where it was not measured."""
        return self._seconds.get(self.best)

    def demand(self) -> Demand:
        """Return the memory that steps need in the way with which the choice begins."""
        return self._search.demand()

    def begin_again(self) -> None:
        """Ask for the first way once more if none was measured yet: the process may have grown since."""
        if self._next is not None and not self._seconds:
            self._asked.close()
            self._asked = self._search.measurements()
            self._next = next(self._asked, None)

    def settle(self) -> None:
        """End the choice with the best way that is known so far."""
        self._asked.close()
        self._next = None
        self._repeated.clear()

    def measure_all(self, measure: Callable[[Execution], float]) -> None:
        """Make all measurements at once; `measure` returns the seconds per sequence of a way."""
        while self._next is not None:
            self._answer(self._next, measure(self._next))

    def accumulate(
        self, replica: Replica, batch: TokenBatch, scale: float, presentation: Presentation = AS_IT_IS
    ) -> tuple[float, StepSeconds]:
        """Compute the gradients of a batch as `training.step.accumulate` does, its rows in the ways to be measured.

        Rows at its end that are too few for the next measurement are computed in the best way so far.
        """
        repeated = deque(self._repeated.popleft()) if self._repeated else None
        self.pieces = []
        loss, seconds, start = 0.0, StepSeconds(0.0, 0.0), 0
        while start < len(batch.inputs):
            left = range(start, len(batch.inputs))
            measured = self._next_measured(len(left), batch) if repeated is None else None
            piece = repeated.popleft() if repeated else measured or Piece(len(left), self.best)
            piece.execution.set_threads()
            rows = left[: piece.rows]
            part, part_seconds = accumulate(replica, batch, piece.execution, scale, rows, presentation)
            loss, seconds, start = loss + part, seconds + part_seconds, start + piece.rows
            self.pieces.append(piece)
            if measured is not None:
                self._answer(measured.execution, (part_seconds.forward + part_seconds.backward) / measured.rows)
        return loss, seconds

    def _next_measured(self, num_left: int, batch: TokenBatch) -> Piece | None:
        """Return the next measurement, or None if there is none or too few rows are left for it."""
        if self._next is None:
            return None
        rows = rows_to_measure(self._next, *batch.inputs.shape)
        return Piece(rows, self._next) if rows <= num_left else None

    def _answer(self, asked: Execution, seconds: float) -> None:
        self._seconds[asked] = min(seconds, self._seconds.get(asked, seconds))
        try:
            self._next = self._asked.send(seconds)
        except StopIteration:
            self._next = None
            self.is_complete = not is_disturbed(ProcessorTime.now().taken_percent_since(self._began))
