"""Shares of a mixture are exact, however small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.order.mixture import CYCLE_ROWS, Mixture


@pytest.mark.parametrize("weight", [1e-3, 1 / 5000, 1 / 10_000, 1e-5])
def test_a_small_weight_is_not_raised(weight: float) -> None:
    mixture = Mixture.steady([1 - weight, weight], seed=0)
    sources, rows = mixture.assign(np.arange(200 * CYCLE_ROWS))
    assert int(sources.sum()) == pytest.approx(weight * len(sources), abs=1.01)
    assert np.array_equal(np.sort(rows[sources == 1]), np.arange(int(sources.sum())))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=40), st.integers(0, 10**9))
def test_every_cycle_is_full_and_goes_on_where_the_one_before_ended(weights: list[float], cycle: int) -> None:
    mixture = Mixture.steady(weights, seed=1)
    sources, rows = mixture.assign(np.arange(cycle * CYCLE_ROWS, (cycle + 2) * CYCLE_ROWS))
    for source in range(len(weights)):
        mine = np.sort(rows[sources == source])
        assert np.array_equal(mine, np.arange(len(mine)) + (mine[0] if len(mine) else 0))
        expected = cycle * CYCLE_ROWS * weights[source] / sum(weights)
        assert len(mine) == 0 or mine[0] == pytest.approx(expected, abs=30 + expected * 1e-6)
