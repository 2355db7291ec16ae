"""Weights as people write them: numbers and schedules, and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.data.corpus.sources import Source, as_sources
from headrace.data.corpus.weights import describe_weight, in_steps, pieces, weight_at
from headrace.errors import UsageError


@pytest.mark.parametrize(
    ("written", "steps"),
    [
        (0.7, 0.7),
        ({0: 0.9, "80%": 0.2}, {"0": 0.9, "800": 0.2}),
        ({0: 0.9, "80%..100%": 0.2}, {"0": 0.9, "800..1000": 0.2}),
        ({0: 0.9, "80..100%": 0.2}, {"0": 0.9, "800..1000": 0.2}),
        ({"2k": 1}, {"2000": 1}),
        ({"50,000 tokens": 0.5}, {"500": 0.5}),
        ({0: 1, "1.5M tokens": 0.5}, {"0": 1, "15000": 0.5}),
        ({0: 0.9, "0..500": 0.5, "500 .. 600": 0.1, 600: 1}, {"0": 0.9, "0..500": 0.5, "500..600": 0.1, "600": 1}),
    ],
)
def test_schedules_are_counted_in_steps(written: Any, steps: Any) -> None:
    weight = Source(path="a", weight=written).weight
    assert weight is not None
    assert in_steps(weight, max_steps=1000, step_tokens=100) == steps


def test_moments_of_a_short_run_that_fall_on_one_step_are_one() -> None:
    assert in_steps({"0": 0.9, "80%": 0.2, "81%": 0.3}, max_steps=3) == {"0": 0.9, "2": 0.3}


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        (-1, "-1 is not a weight"),
        (float("nan"), "nan is not a weight"),
        (float("inf"), "inf is not a weight"),
        (10**400, "is not a weight"),
        (True, "True is not a weight"),
        ("heavy", "'heavy' is not a weight"),
        ({}, "an empty schedule"),
        ({0: 1, 10: "x"}, "'x' is not a weight"),
        ({0: 1, 20: 2, 10: 3}, "'10' comes after '20' in the schedule, but not later in the run"),
        ({0: 1, "10..20": 2, 15: 3}, "'15' comes after '10..20'"),
        ({0: 1, "20..10": 2}, "ends before it begins"),
        ({0: 1, 0.8: 2}, "0.8 of the run is 80%"),
        ({0: 1, "soon": 2}, "'soon' is not a moment of a run"),
        ({0: 1, "120%": 2}, "a run has 100%"),
        ({0: 1, "1.5": 2}, "not a number of steps"),
        ({0: 1, 1 << 60: 2}, "not a number of steps that a run can have"),
        ({5: 1, "5": 2}, "stands twice"),
        (dict.fromkeys(range(2000), 1), "the most are 1,000"),
    ],
)
def test_other_weights_are_refused_with_their_place(written: Any, complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        as_sources([{"path": "web/", "weight": written}])
    assert complaint in str(refused.value)
    assert "'web/'" in str(refused.value)
    assert "weight: " in str(refused.value)


def test_units_are_compared_once_they_are_steps() -> None:
    assert Source(path="a", weight={0: 1, "50%": 2, 600: 3}).weight
    with pytest.raises(ValueError, match="'600' comes after '70%'"):
        in_steps({"0": 1, "70%": 2, "600": 3}, max_steps=1000)
    with pytest.raises(ValueError, match=r"training\.max_steps=N"):
        in_steps({"0": 1, "70%": 2})


def test_a_weight_is_what_its_schedule_says_at_every_step() -> None:
    changes = pieces({"2": 1.0, "4..8": 0.0, "8": 0.5})
    assert [float(weight_at(changes, step)) for step in range(10)] == [0, 0, 1, 1, 1, 0.75, 0.5, 0.25, 0.5, 0.5]
    assert weight_at(changes, 8, is_end=True) == 0
    assert describe_weight({"2": 1.0, "4..8": 0.0}) == "0 → 1 at step 2 → 0 from step 4 to 8"
