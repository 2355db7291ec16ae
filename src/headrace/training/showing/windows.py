"""Dealing out windows: while they are short, those of one update come from the sequences of several batches.

Windows that are cut from one sequence stand beside each other in the text, and an update learns more from windows of
many places (docs/design/presentation.md). So where a sequence has four windows, four batches are read together, and
each of four updates is shown one window of every sequence in them. Batches keep their shape, and every window is shown
once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.training.config import count_pieces
from headrace.training.showing.presentation import TokenBatch

DEALT = "dealt_windows"
"""Key of a state that was taken before all windows of the batches that are read were shown."""
MOST_TOGETHER = 16
"""Most batches that are read together: windows of so many places are as good as any, and memory stays small."""


def batches_held(pieces: int) -> int:
    """Return the most batches that are held to deal out windows, of which a sequence has so many.

    >>> batches_held(1), batches_held(4)
    (0, 8)
    """
    return 2 * math.gcd(pieces, MOST_TOGETHER) if pieces > 1 else 0  # dealt out now, and read for later


class BatchStream(Protocol):
    """An endless stream of batches that knows its place; the data engine's `Loader` is one.

    A batch stays as it is when the next one is taken.
    """

    def __next__(self) -> TokenBatch: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class DealtBatch:
    """Rows of windows that are not of one sequence."""

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    documents: npt.NDArray[np.int32] | None = None
    mask: npt.NDArray[np.bool_] | None = None

    @property
    def num_tokens(self) -> int:
        """Targets that count."""
        return int(self.targets.size if self.mask is None else self.mask.sum())


class DealtWindows:
    """A stream of batches whose windows are dealt out, which knows its place among them."""

    def __init__(self, batches: BatchStream) -> None:
        self._batches = batches
        self._window, self._num_shown = 0, 0
        self._together: list[TokenBatch] = []  # the batches that are dealt out at present; empty when all were shown
        self._start: dict[str, Any] = {}  # state before them
        self._ahead: deque[tuple[dict[str, Any], TokenBatch]] = deque()  # read for later, each with the state before it

    def next(self, window: int) -> tuple[TokenBatch, int]:
        """Return the next batch, and the tokens of the windows into which its sequences are to be cut.

        `window`: tokens of the windows that are wanted, 0 for whole sequences. Batches that are dealt out already keep
        the windows that they were dealt out with.
        """
        if not self._together:
            self._take_together(self._window if self._num_shown else window)
        batch = deal(self._together, self._num_shown)
        if self._window:
            # One batch with each update, for those that are dealt out next, and after dealing: taking a batch wakes the
            # loader's workers, and an array that is copied then waits for Python's lock until they have made theirs.
            self._read()
        self._num_shown += 1
        if self._num_shown == len(self._together):
            self._together, self._num_shown = [], 0
        return batch, self._window

    def state(self) -> dict[str, Any]:
        """Return the place in the stream: that of the batches, and how many of those that are dealt out were shown."""
        if self._num_shown:
            return {**self._start, DEALT: {"window": self._window, "shown": self._num_shown}}
        if self._together:  # stopped before any was shown
            return self._start
        return self._ahead[0][0] if self._ahead else self._batches.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state()` was taken."""
        self._start = {key: value for key, value in state.items() if key != DEALT}
        dealt = state.get(DEALT, {"window": 0, "shown": 0})
        self._window, self._num_shown = int(dealt["window"]), int(dealt["shown"])
        self._together = []
        self._ahead.clear()
        self._batches.restore(self._start)

    def _take_together(self, window: int) -> None:
        """Take as many batches as a sequence has windows, to deal them out.

        A stream may refuse to wait for its next batch; what was read before that is kept for the next call.
        """
        self._window = window
        if not self._ahead:
            self._read()
        num_together = math.gcd(count_pieces(self._ahead[0][1].inputs.shape[1], window), MOST_TOGETHER)
        while len(self._ahead) < num_together:
            self._read()
        together = [self._ahead.popleft() for _ in range(num_together)]
        self._start = together[0][0]
        self._together = [batch for _, batch in together]

    def _read(self) -> None:
        """Read a batch; the state before it is needed only where it is not shown at once."""
        state = deepcopy(self._batches.state()) if self._window else {}
        self._ahead.append((state, next(self._batches)))


def deal(batches: Sequence[TokenBatch], number: int) -> TokenBatch:
    """Return the dealt batch of this number, from 0: of the sequences of batch i, it has part (number + i) mod n.

    `batches`: those that are dealt out together, n of them; a dealt batch has their shape. A row keeps its number, so
    that processes that share batches by rows deal out what one process would. Each dealt batch has a beginning of some
    sequence, as documents may begin and padding may end there. A single batch, and batches that are not alike, stay as
    they are.
    """
    count = len(batches)
    arrays = [(batch.inputs, batch.targets, batch.documents, batch.mask) for batch in batches]
    if count == 1 or len({tuple(None if array is None else array.shape for array in one) for one in arrays}) > 1:
        return batches[number]
    width = batches[0].inputs.shape[1] // count
    parts = [slice(part * width, (part + 1) * width) for part in range(count)]

    def dealt(same: Sequence[npt.NDArray[Any] | None]) -> Any:
        there = [array[:, parts[(number + i) % count]] for i, array in enumerate(same) if array is not None]
        return np.concatenate(there, axis=1) if there else None

    return DealtBatch(*map(dealt, zip(*arrays, strict=True)))
