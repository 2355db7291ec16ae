"""Made-up histories: a rise is found early, and noise is not taken for one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from headrace.perf.overfitting import Judged, Rise, find_rise

OVERFITTING = (3.0, 2.2, 1.9, 1.75, 1.70, 1.72, 1.77, 1.85, 1.95)
"""Lowest at the fifth evaluation."""


def judged(losses: Sequence[float], fall: float = 0.05, sample_tokens: int = 10_000) -> list[Judged]:
    return [
        Judged(100 * number, 10**5 * number, 10.0 * number, loss, 3.0 - fall * number, sample_tokens)
        for number, loss in enumerate(losses, 1)
    ]


def first_found(evaluations: list[Judged]) -> Rise | None:
    """What a run would be warned of, as its evaluations come one after the other."""
    found = (find_rise(evaluations[:number]) for number in range(len(evaluations) + 1))
    return next((rise for rise in found if rise is not None), None)


def test_a_rise_is_found_early_with_what_is_told_about_it() -> None:
    rise = first_found(judged(OVERFITTING))
    assert rise is not None
    assert (rise.best.step, rise.newest.step, rise.num_evaluations) == (500, 800, 3)


def test_a_clear_rise_is_found_at_the_second_evaluation() -> None:
    rise = first_found(judged([2.0, 1.5, 1.6, 1.8, 2.0]))
    assert rise is not None
    assert (rise.best.step, rise.newest.step) == (200, 400)


def test_one_evaluation_is_not_enough_however_high() -> None:
    assert find_rise(judged([2.0, 1.5, 9.0])) is None
    assert first_found(judged([2.0, 1.5, 1.9, 1.49, 1.45])) is None


def test_training_that_does_not_go_down_is_not_learning_by_heart() -> None:
    assert first_found(judged(OVERFITTING, fall=0.0)) is None
    assert first_found(judged(OVERFITTING, fall=-0.1)) is None, "the run diverges: another warning's business"


def test_what_falls_again_is_no_rise_any_more() -> None:
    evaluations = judged([*OVERFITTING, 1.69])
    assert find_rise(evaluations[:-1]) is not None
    assert find_rise(evaluations) is None


def test_an_evaluation_on_other_text_is_not_compared() -> None:
    falling = judged([2.0, 1.8, 1.7, 1.65])
    whole = [Judged(500 + number, 0, 60.0, 1.9, 2.0, 200_000) for number in range(2)]
    assert find_rise([*falling, *whole]) is None
    assert find_rise([]) is None


def test_a_smaller_sample_needs_a_larger_rise() -> None:
    slight = [2.0, 1.7, 1.6, 1.56, 1.55, 1.56, 1.57, 1.58, 1.59, 1.60]
    assert first_found(judged(slight, sample_tokens=50_000)) is not None
    assert first_found(judged(slight, sample_tokens=2_000)) is None


@pytest.mark.parametrize("jitter", [0.002, 0.005, 0.01])
@pytest.mark.parametrize("sample_tokens", [2_000, 10_000, 50_000])
def test_noise_is_not_taken_for_a_rise(jitter: float, sample_tokens: int) -> None:
    """Of 200 runs whose loss levels off, or is level from the beginning, at most one in a hundred warns."""
    rng = np.random.default_rng(0)
    falling = 1.5 + 1.5 * np.exp(-np.arange(10) / 3)
    for curve in (falling, np.full(10, 1.5)):
        noisy = [curve + rng.normal(scale=jitter, size=10) for _ in range(200)]
        warned = sum(first_found(judged(losses.tolist(), sample_tokens=sample_tokens)) is not None for losses in noisy)
        assert warned <= 2
    over = [np.array(OVERFITTING) + rng.normal(scale=jitter, size=9) for _ in range(100)]
    found = sum(first_found(judged(losses.tolist(), sample_tokens=sample_tokens)) is not None for losses in over)
    assert found >= 98, "and a real rise is found"
