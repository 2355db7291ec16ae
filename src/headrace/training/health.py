"""The judge of updates, by whether they were finite, and of weights, by a batch that was."""

from __future__ import annotations

from collections import deque

from headrace.errors import TrainingError
from headrace.training.showing.presentation import TokenBatch
from headrace.training.step import StepResult, TrainStep

MAX_BAD_STEPS = 5  # skipped updates in a row that end a run
MAX_BAD_RECENTLY, RECENT_STEPS = 10, 50  # skipped updates among the newest ones that end a run
JUMP = 10.0  # a loss this many times the mean of those before it is a sign that training has failed


class Health:
    """The judge of updates, by whether they were finite, and of weights, by a batch that was."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._recent: deque[bool] = deque(maxlen=RECENT_STEPS)
        self._losses: deque[float] = deque(maxlen=RECENT_STEPS)
        self._batch: TokenBatch | None = None
        self._has_warned = False

    def note(self, step: int, batch: TokenBatch, result: StepResult) -> str | None:
        """Add an update; raise an error after too many skipped ones, and return a warning when the loss first jumps."""
        self._in_a_row = 0 if result.is_finite else self._in_a_row + 1
        self._recent.append(not result.is_finite)
        if self._in_a_row >= MAX_BAD_STEPS:
            raise broken(f"the loss or its gradient was not finite in {self._in_a_row} updates in a row (step {step})")
        if sum(self._recent) >= MAX_BAD_RECENTLY:
            many = f"{sum(self._recent)} of the last {len(self._recent)} updates (step {step})"
            raise broken(f"the loss or its gradient was not finite in {many}")
        warning = self._warning(step, result.loss)
        if result.is_finite:
            self._batch = batch
            self._losses.append(result.loss)
        return warning

    def is_sound(self, train_step: TrainStep) -> bool:
        """Return whether the weights are worth saving; the loss of an update is that of the weights before it."""
        return self._batch is not None and train_step.is_sound(self._batch)

    def _warning(self, step: int, loss: float) -> str | None:
        if self._has_warned or not self._losses:
            return None
        mean = sum(self._losses) / len(self._losses)
        if not loss > JUMP * mean:
            return None
        self._has_warned = True
        return (
            f"the loss jumped from {mean:.4g} to {loss:.4g} at step {step}: training may have failed."
            " Lower training.learning_rate if it does not come back."
        )


def broken(what: str) -> TrainingError:
    """Return the error that ends a run whose weights are lost."""
    return TrainingError(
        f"{what}. Nothing was saved since the last good checkpoint, which is intact. Lower training.learning_rate, or"
        " look at the data with `headrace inspect RUN --step N`."
    )
