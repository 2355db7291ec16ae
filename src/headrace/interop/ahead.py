"""Batches converted for another framework a few steps ahead of the consumer, with the consumer's state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from headrace.data.batch import Batch
from headrace.data.loader import Loader

Converted = TypeVar("Converted")


class Ahead(Generic[Converted]):
    """An endless iterator of converted batches, whose copies to a device overlap with work on earlier batches.

    The loader itself is ahead by the batches in flight; `state()` counts only those that were handed out.
    """

    def __init__(self, loader: Loader, convert: Callable[[Batch], Converted], num_ahead: int) -> None:
        self._loader = loader
        self._convert = convert
        self._num_ahead = num_ahead
        self._in_flight: deque[Converted] = deque()

    def __iter__(self) -> Iterator[Converted]:
        return self

    def __next__(self) -> Converted:
        while len(self._in_flight) <= self._num_ahead:
            self._in_flight.append(self._convert(next(self._loader)))
        return self._in_flight.popleft()

    @property
    def step(self) -> int:
        """The step of the next batch."""
        return self._loader.step - len(self._in_flight)

    def state(self) -> dict[str, Any]:
        """Return the consumer's position; it equals the loader's own state at this step."""
        return self._loader.state(self.step)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where a state was taken, whether from this object or from the loader itself."""
        self._loader.restore(state)
        self._in_flight.clear()
