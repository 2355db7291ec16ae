"""Which source each row of a mixture comes from: exact shares, spread evenly, any row found at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from headrace.data.order.permutation import make_key, permute

CYCLE_ROWS = 4096
_PARTS = 1 << 32  # shares are counted in this many parts of a row
_STRIDE = 2654435769  # _PARTS over the golden ratio: its multiples (modulo _PARTS) lie evenly, whatever their number

Rows = npt.NDArray[np.int64]


class Mixture:
    """An endless sequence of rows from several sources, in cycles of 4,096 rows that hold each source's share.

    >>> mixture = Mixture([3, 1], seed=0)
    >>> source, row = mixture.assign(np.arange(4096))
    >>> np.bincount(source).tolist()
    [3072, 1024]

    Every cycle has an order of its own. A share that is no whole number of rows is rounded down in some cycles and up
    in others, so that it is exact over many of them: a source with a weight of 1 in 10,000 has a row in about four of
    ten cycles.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        exact = [Fraction(weight) for weight in weights]
        total = sum(exact)
        self.shares = np.array([float(weight / total) for weight in exact])
        """Share of each source in the mixture; they add up to 1."""
        rows = [weight * CYCLE_ROWS / total for weight in exact]
        self._whole = [int(share) for share in rows]
        # The fractions of a row that remain of each source's share are laid end to end on a line, and each cycle moves
        # the line on. A source gets one row more in a cycle in which a whole number falls into its fraction. The
        # fractions add up to a whole number, so every cycle is full.
        fractions = [share - whole for share, whole in zip(rows, self._whole, strict=True)]
        self._edges = [round(edge * _PARTS) for edge in accumulate(fractions, initial=Fraction())]
        self._seed = seed
        self._cycle: tuple[int, Rows, Rows] | None = None
        self._lock = threading.Lock()

    def assign(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return, for each row of the mixture, its source and which row of that source it is."""
        sources, indices = np.empty_like(rows), np.empty_like(rows)
        cycles = rows // CYCLE_ROWS
        for cycle in np.unique(cycles).tolist():
            chosen = np.flatnonzero(cycles == cycle)
            slots = rows[chosen] - cycle * CYCLE_ROWS
            cycle_sources, cycle_indices = self._layout(cycle)
            sources[chosen] = cycle_sources[slots]
            indices[chosen] = cycle_indices[slots]
        return sources, indices

    def _layout(self, cycle: int) -> tuple[Rows, Rows]:
        """Return, for each row of a cycle, its source and which row of that source it is; the newest cycle is kept."""
        with self._lock:
            if self._cycle is None or self._cycle[0] != cycle:
                before, after = self._rows_before(cycle), self._rows_before(cycle + 1)
                places = permute(np.arange(CYCLE_ROWS), CYCLE_ROWS, make_key("mixture", self._seed, cycle))
                sources = np.searchsorted(np.cumsum(after - before), places, side="right")
                indices = np.empty_like(sources)
                for source in np.unique(sources).tolist():
                    indices[sources == source] = np.arange(before[source], after[source])
                self._cycle = (cycle, sources, indices)
            return self._cycle[1], self._cycle[2]

    def _rows_before(self, cycle: int) -> Rows:
        """Return how many rows of each source stand before a cycle."""
        passed = [_floor_sum(cycle, _PARTS, _STRIDE, edge) for edge in self._edges]
        extra = [after - before for before, after in pairwise(passed)]
        return np.array([cycle * whole + more for whole, more in zip(self._whole, extra, strict=True)])


def _floor_sum(count: int, divisor: int, step: int, start: int) -> int:
    """Return the sum of (start + i * step) // divisor over i < count, as Euclid's algorithm finds it.

    >>> _floor_sum(5, 7, 3, 2) == sum((2 + 3 * i) // 7 for i in range(5))
    True
    """
    total = 0
    while count > 0:
        total += (count - 1) * count // 2 * (step // divisor) + count * (start // divisor)
        step, start = step % divisor, start % divisor
        top = step * count + start
        count, start, divisor, step = top // divisor, top % divisor, step, divisor
        if divisor == 0:
            break
    return total
