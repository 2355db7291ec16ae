"""The loss of one batch is noisy; an average over the newest updates shows where training is."""

from __future__ import annotations

from collections.abc import Iterable

MOST_UPDATES = 50
SHARE = 0.1


class SmoothedLoss:
    """A moving average over the newest tenth of all updates, and over about 50 at most.

    >>> SmoothedLoss([4.0, 2.0]).value, round(SmoothedLoss([4.0] * 99 + [2.0]).value, 2)
    (2.0, 3.8)
    """

    def __init__(self, losses: Iterable[float] = ()) -> None:
        self.value: float | None = None
        """The average; None before the first update."""
        self._num_updates = 0
        for loss in losses:
            self.add(loss)

    def add(self, loss: float) -> float:
        """Take in the loss of an update; return the new average."""
        self._num_updates += 1
        width = min(max(1.0, SHARE * self._num_updates), MOST_UPDATES)
        before = loss if self.value is None else self.value
        self.value = before + (loss - before) / width
        return self.value
