"""One pass over a corpus: where each of its blocks begins, known as soon as the blocks before it are tokenised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.data.order.blocks import SegmentIds


class Epoch:
    """Where the blocks of one pass begin, found out block by block as their sizes become known."""

    def __init__(self, blocks: list[SegmentIds], measure: Callable[[list[int]], int]) -> None:
        """`measure`: counts the positions that segments take, and waits until they are tokenised."""
        self.blocks = blocks
        self._measure = measure
        self._starts = [0]

    def find(self, position: int) -> tuple[int, int, int] | None:
        """Return the block at a position of this pass, with its start and stop; None beyond the end."""
        while position >= self._starts[-1] and len(self._starts) <= len(self.blocks):
            self._extend()
        if position >= self._starts[-1]:
            return None
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return number, self._starts[number], self._starts[number + 1]

    @property
    def size(self) -> int:
        """The positions of the whole pass."""
        while len(self._starts) <= len(self.blocks):
            self._extend()
        return self._starts[-1]

    def _extend(self) -> None:
        block = self.blocks[len(self._starts) - 1]
        self._starts.append(self._starts[-1] + self._measure(block.tolist()))
