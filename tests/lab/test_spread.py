"""Spreads and verdicts: a difference counts only if it is beyond the noise between seeds."""

from __future__ import annotations

from typing import Any

import pytest


def results(**values: list[float]) -> list[dict[str, Any]]:
    return [
        {"variant": name, "corpus": "c", "budget": "3 steps", "seed": seed, "bits_per_byte": value}
        for name, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]


def verdicts(found: list[dict[str, Any]], **options: Any) -> dict[str, str]:
    from lab.spread import compare

    return {row.variant: row.verdict for row in compare(found, "base", **options)}


def test_verdicts_follow_the_spread() -> None:
    found = results(base=[2.0, 2.01, 1.99], low=[1.9, 1.91, 1.89], high=[2.1, 2.12, 2.11], same=[2.0, 1.99, 2.02])
    assert verdicts(found) == {"base": "baseline", "low": "better", "high": "worse", "same": "unclear"}


def test_few_seeds_make_a_wide_interval() -> None:
    from lab.spread import compare

    row = compare(results(base=[2.0, 2.02], low=[1.96, 1.98]), "base")[1]
    assert row.difference == pytest.approx(-0.04)
    assert row.spread == pytest.approx(0.01414, rel=1e-3)
    assert row.uncertainty == pytest.approx(4.30 * 0.01414, rel=1e-3)  # two degrees of freedom, two seeds on each side
    assert row.verdict == "unclear"


def test_one_seed_says_nothing_unless_the_spread_is_known() -> None:
    found = results(base=[2.0], low=[1.9], near=[1.99])
    assert verdicts(found) == {"base": "baseline", "low": "unclear", "near": "unclear"}
    assert verdicts(found, seed_spread=0.01) == {"base": "baseline", "low": "better", "near": "unclear"}


def test_without_a_baseline_nothing_is_compared() -> None:
    assert verdicts(results(low=[1.9, 1.91])) == {"low": "unclear"}
