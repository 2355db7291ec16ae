"""Which source each row of a mixture comes from: exact shares, spread evenly, any row found at once.

Shares may change over the rows: at once, or in a straight line. See docs/design/order.md.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from headrace.data.order.permutation import make_key, permute

CYCLE_ROWS = 4096
LINE_CYCLES = 64  # in at least so many steps shares go along a line, where it is long enough
LINE_CYCLE_ROWS = 64  # the fewest rows of such a step, but for very short lines
KEPT_CYCLES = 8  # cycles whose layout is kept: neighbouring batches need the same ones
_PARTS = 1 << 32  # shares are counted in this many parts of a row
_STRIDE = 2654435769  # _PARTS over the golden ratio: its multiples (modulo _PARTS) lie evenly, whatever their number

Rows = npt.NDArray[np.int64]
Shares = tuple[Fraction, ...]


@dataclass(frozen=True)
class Phase:
    """Rows of a mixture whose shares are constant, or go in a straight line from one mixture to another."""

    first_row: int
    shares: Shares
    """Share of each source at the first row; they add up to 1."""
    final_shares: Shares
    """Shares that the last row leads to; the same as `shares` where they are constant."""
    num_rows: int | None = None
    """Rows that it is planned for; None: no end. The phase after it may begin earlier, and cuts it short."""

    @property
    def num_cycles(self) -> int:
        """Return into how many cycles of equal length it is divided; of an endless one, 1."""
        if self.num_rows is None:
            return 1
        cycles = -(-self.num_rows // CYCLE_ROWS)
        if self.shares != self.final_shares:
            cycles = max(cycles, min(LINE_CYCLES, -(-self.num_rows // LINE_CYCLE_ROWS)))
        return cycles

    @property
    def cycle_rows(self) -> int:
        return CYCLE_ROWS if self.num_rows is None else -(-self.num_rows // self.num_cycles)


class Mixture:
    """An endless sequence of rows from several sources, in cycles of at most 4,096 rows that hold each source's share.

    >>> mixture = Mixture.steady([3, 1], seed=0)
    >>> source, row = mixture.assign(np.arange(4096))
    >>> np.bincount(source).tolist()
    [3072, 1024]
    >>> mixture.rows_before(8192).tolist()
    [6144, 2048]

    Every cycle has an order of its own. A share that is no whole number of rows is rounded down in some cycles and up
    in others, so that it is exact over many of them: a source with a weight of 1 in 10,000 has a row in about four of
    ten cycles.
    """

    def __init__(self, phases: Sequence[Phase], seed: int) -> None:
        """`phases`: in the order of their rows; the first begins at row 0, and the last has no end."""
        self.phases = list(phases)
        self._seed = seed
        self._lock = threading.Lock()
        self._layouts: OrderedDict[int, tuple[Rows, Rows]] = OrderedDict()
        self._laid: list[_Laid] = []
        cycle, before = 0, np.zeros(len(phases[0].shares), dtype=np.int64)
        for phase, following in pairwise([*phases, None]):
            assert phase is not None
            self._laid.append(_Laid(phase, cycle, before))
            if following is not None:
                before = self.rows_before(following.first_row)
                cycle += -(-(following.first_row - phase.first_row) // phase.cycle_rows)
        self._first_rows = np.array([phase.first_row for phase in phases])
        self._first_cycles = np.array([laid.first_cycle for laid in self._laid])
        self._cycle_rows = np.array([phase.cycle_rows for phase in phases])

    @classmethod
    def steady(cls, weights: Sequence[float], seed: int) -> Mixture:
        """Return a mixture whose shares never change."""
        shares = as_shares([Fraction(weight) for weight in weights])
        return cls([Phase(0, shares, shares)], seed)

    def assign(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return, for each row of the mixture, its source and which row of that source it is."""
        sources, indices = np.empty_like(rows), np.empty_like(rows)
        numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        cycles, slots = np.divmod(rows - self._first_rows[numbers], self._cycle_rows[numbers])
        cycles += self._first_cycles[numbers]
        for cycle in np.unique(cycles).tolist():
            chosen = np.flatnonzero(cycles == cycle)
            cycle_sources, cycle_indices = self._layout(self._laid[int(numbers[chosen[0]])], cycle)
            sources[chosen] = cycle_sources[slots[chosen]]
            indices[chosen] = cycle_indices[slots[chosen]]
        return sources, indices

    def rows_before(self, row: int) -> Rows:
        """Return how many rows of each source stand before a row of the mixture: its position in each source."""
        laid = next(laid for laid in reversed(self._laid) if laid.phase.first_row <= row)
        cycle, slot = divmod(row - laid.phase.first_row, laid.phase.cycle_rows)
        before = laid.rows_before(laid.first_cycle + cycle)
        if not slot:
            return before
        sources, _ = self._layout(laid, laid.first_cycle + cycle)
        return before + np.bincount(sources[:slot], minlength=len(before))

    def mean_shares(self) -> list[float]:
        """Return the share of each source, averaged over the phases, however long they are."""
        ends = [shares for phase in self.phases for shares in (phase.shares, phase.final_shares)]
        return [float(sum(some) / len(ends)) for some in zip(*ends, strict=True)]

    def _layout(self, laid: _Laid, cycle: int) -> tuple[Rows, Rows]:
        """Return, for each row of a cycle, its source and which row of that source it is; the newest are kept."""
        with self._lock:
            found = self._layouts.get(cycle)
            if found is None:
                before, after = laid.rows_before(cycle), laid.rows_before(cycle + 1)
                size = laid.phase.cycle_rows
                places = permute(np.arange(size), size, make_key("mixture", self._seed, cycle))
                sources = np.searchsorted(np.cumsum(after - before), places, side="right")
                indices = np.empty_like(sources)
                for source in np.unique(sources).tolist():
                    indices[sources == source] = np.arange(before[source], after[source])
                found = self._layouts[cycle] = (sources, indices)
                while len(self._layouts) > KEPT_CYCLES:
                    self._layouts.popitem(last=False)
            self._layouts.move_to_end(cycle)
            return found


class _Laid:
    """A phase with its place among the others: the number of its first cycle, and the rows of each source before it.

    The shares of all sources, in rows of a cycle, lie end to end on a line, and each cycle moves the line on. A source
    has as many rows in a cycle as there are whole numbers in its part of the line. All parts together are as long as
    the cycle, so every cycle is full. Where shares change, the edges between the parts move evenly from cycle to cycle,
    so that the rows before a cycle are a sum of floors of a straight line in either case.
    """

    def __init__(self, phase: Phase, first_cycle: int, before: Rows) -> None:
        self.phase, self.first_cycle = phase, first_cycle
        self._before = before
        self._begin, self._end = _edges(phase.shares, phase.cycle_rows), _edges(phase.final_shares, phase.cycle_rows)

    def rows_before(self, cycle: int) -> Rows:
        """Return how many rows of each source stand before a cycle of this phase."""
        # Cycle t of n takes the shares at its middle, (2t + 1) / 2n of the way from the first edges to the last.
        count, parts = cycle - self.first_cycle, 2 * self.phase.num_cycles
        passed = [
            _floor_sum(
                count,
                parts * _PARTS,
                parts * _STRIDE + 2 * (end - begin),
                parts * (self.first_cycle * _STRIDE + begin) + (end - begin),
            )
            for begin, end in zip(self._begin, self._end, strict=True)
        ]
        rows: Rows = self._before + np.array([after - before for before, after in pairwise(passed)])
        return rows


def as_shares(weights: Sequence[Fraction]) -> Shares:
    """Return weights, of which at least one is above 0, as shares that add up to 1."""
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def _edges(shares: Shares, cycle_rows: int) -> list[int]:
    """Return where the share of each source begins on the line of a cycle, and where the last ends."""
    return [round(edge * cycle_rows * _PARTS) for edge in accumulate(shares, initial=Fraction())]


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
