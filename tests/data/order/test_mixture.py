"""Shares of a mixture are exact, however small and however they change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.order.mixture import CYCLE_ROWS, Mixture
from headrace.data.order.plans import Plan, make_mixture, mark_of, plans_before
from headrace.files import digest


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


STEPS = st.integers(0, 60)
WEIGHTS = st.sampled_from([0.0, 0.0, 1e-4, 0.3, 1.0, 7.0])


@st.composite
def schedules(draw: st.DrawFn) -> float | dict[str, float]:
    """A weight: a number, or a schedule of points and lines."""
    if draw(st.booleans()):
        return draw(st.floats(0.01, 9))
    edges = sorted(draw(st.sets(st.integers(0, 60), min_size=1, max_size=6)))
    schedule: dict[str, float] = {}
    while edges:
        start = edges.pop(0)
        is_line = bool(edges) and draw(st.booleans())
        schedule[f"{start}..{edges[0]}" if is_line else f"{start}"] = draw(WEIGHTS)
    return schedule


def plan_of(first_step: int, weights: list[float | dict[str, float]]) -> Plan:
    return Plan(first_step, [0.25, *weights])  # one source always has a share


@settings(deadline=None, max_examples=60)
@given(st.lists(schedules(), min_size=1, max_size=4), st.integers(1, 70), st.integers(0, 99))
def test_every_row_of_a_schedule_comes_once_and_shares_are_kept(
    weights: list[float | dict[str, float]], batch_size: int, seed: int
) -> None:
    plan = plan_of(0, weights)
    mixture = make_mixture([plan], batch_size, seed)
    total = 64 * batch_size
    sources, indices = mixture.assign(np.arange(total))
    for source in range(len(weights) + 1):
        mine = indices[sources == source]
        assert np.array_equal(np.sort(mine), np.arange(len(mine)))
    for phase in mixture.phases[:-1]:
        assert phase.num_rows is not None
        served = np.bincount(sources[phase.first_row : phase.first_row + phase.num_rows], minlength=len(weights) + 1)
        means = [(a + b) / 2 * phase.num_rows for a, b in zip(phase.shares, phase.final_shares, strict=True)]
        # The last cycle of a line may have a few rows fewer than the others.
        assert all(abs(n - float(mean)) <= 2 + phase.num_cycles for n, mean in zip(served, means, strict=True))
    for row in {0, 1, total // 3, total // 2 + 1, total - 1, total}:
        assert np.array_equal(mixture.rows_before(row), np.bincount(sources[:row], minlength=len(weights) + 1))
    some = np.arange(total)[seed % 7 :: 11]
    assert all(np.array_equal(*pair) for pair in zip(mixture.assign(some), (sources[some], indices[some]), strict=True))


@settings(deadline=None, max_examples=60)
@given(st.lists(schedules(), min_size=1, max_size=3), st.lists(schedules(), min_size=4, max_size=4), STEPS, STEPS)
def test_a_change_moves_no_row_before_it_and_goes_on_in_every_source(
    before: list[float | dict[str, float]], after: list[float | dict[str, float]], first: int, second: int
) -> None:
    first, second = 1 + min(first, second), 2 + max(first, second)
    plans = [plan_of(0, before), plan_of(first, after), Plan(second, [1.0])]
    total, batch_size = 70 * 8, 8
    whole = make_mixture(plans, batch_size, seed=3).assign(np.arange(total))
    for count in (1, 2):
        row = plans[count].first_step * batch_size
        earlier = make_mixture(plans[:count], batch_size, seed=3).assign(np.arange(row))
        assert all(np.array_equal(now[:row], then) for now, then in zip(whole, earlier, strict=True))
        marks = [mark_of(plans_before(some, plans[count].first_step), batch_size) for some in (plans, plans[:count])]
        assert marks[0] == marks[1]
    for source in range(5):
        mine = whole[1][whole[0] == source]
        assert np.array_equal(np.sort(mine), np.arange(len(mine)))


def test_a_mixture_that_never_changes_is_marked_as_it_always_was() -> None:
    assert mark_of([Plan(0, [0.7, 0.3])], 8) == digest(repr([0.7, 0.3]))[:8]
    assert mark_of([Plan(0, [{"0": 0.7}, 0.3])], 8) == digest(repr([0.7, 0.3]))[:8]
    assert mark_of([Plan(0, [1.0], is_mixture=False)], 8) == ""


def test_rare_sources_have_their_share_of_many_short_phases() -> None:
    """Fractions of a row go on from phase to phase; if each began anew, 1 in 500 would never be served."""
    weight = {str(step): 0.002 + 1e-6 * (step % 2) for step in range(0, 4000, 4)}
    mixture = make_mixture([Plan(0, [0.998, weight])], batch_size=8, seed=0)
    assert mixture.rows_before(4000 * 8)[1] == pytest.approx(64, abs=3)
