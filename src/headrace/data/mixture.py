"""Which source each row of a mixture comes from: exact shares, spread evenly, any row found at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.data.permute import make_key, permute

CYCLE_ROWS = 4096

Rows = npt.NDArray[np.int64]


class Mixture:
    """Rows come in cycles of 4,096. Every cycle holds each source's exact share, in an order of its own.

    >>> mixture = Mixture([3, 1], seed=0)
    >>> source, row = mixture.assign(np.arange(4096))
    >>> np.bincount(source).tolist()
    [3072, 1024]
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        self.shares = _largest_remainder(weights)
        self._stops = np.cumsum(self.shares)
        self._seed = seed
        self._cycle: tuple[int, Rows, Rows] | None = None
        self._lock = threading.Lock()

    def assign(self, rows: Rows) -> tuple[Rows, Rows]:
        """For each row of the mixture: its source, and which row of that source it is."""
        sources, indices = np.empty_like(rows), np.empty_like(rows)
        cycles = rows // CYCLE_ROWS
        for cycle in np.unique(cycles).tolist():
            chosen = np.flatnonzero(cycles == cycle)
            slots = rows[chosen] - cycle * CYCLE_ROWS
            cycle_sources, ranks = self._layout(cycle)
            sources[chosen] = cycle_sources[slots]
            indices[chosen] = cycle * self.shares[cycle_sources[slots]] + ranks[slots]
        return sources, indices

    def _layout(self, cycle: int) -> tuple[Rows, Rows]:
        with self._lock:
            if self._cycle is None or self._cycle[0] != cycle:
                places = permute(np.arange(CYCLE_ROWS), CYCLE_ROWS, make_key("mixture", self._seed, cycle))
                sources = np.searchsorted(self._stops, places, side="right")
                ranks = np.empty_like(sources)
                for source, share in enumerate(self.shares.tolist()):
                    ranks[sources == source] = np.arange(share)
                self._cycle = (cycle, sources, ranks)
            return self._cycle[1], self._cycle[2]


def _largest_remainder(weights: Sequence[float]) -> Rows:
    """Shares of a cycle in proportion to the weights; each at least one row."""
    exact = np.array(weights, dtype=np.float64) / sum(weights) * CYCLE_ROWS
    shares = np.maximum(np.floor(exact).astype(np.int64), 1)
    while shares.sum() < CYCLE_ROWS:
        shares[np.argmax(exact - shares)] += 1
    while shares.sum() > CYCLE_ROWS:
        shares[np.argmax(shares)] -= 1
    return shares
