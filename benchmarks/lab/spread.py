"""Means, spreads and verdicts: which difference between two variants is more than the noise between seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Literal

Verdict = Literal["baseline", "better", "worse", "unclear"]
# Two-sided 95% quantiles of Student's t for 1, 2, ... degrees of freedom; beyond them, the normal one is close enough.
_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_MANY = 2.0


@dataclass(frozen=True)
class Row:
    """One variant on one corpus with one budget, over all seeds that are finished."""

    corpus: str
    budget: str
    variant: str
    values: Sequence[float]
    """Bits per byte, a value for each seed."""
    difference: float | None
    """Mean minus the baseline's mean; below zero is better. None without a finished baseline."""
    uncertainty: float | None
    """Half the width of the 95% interval of the difference; None where no spread is known."""
    verdict: Verdict
    results: Sequence[Mapping[str, Any]]

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation between seeds; None for a single one."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def bar(self) -> tuple[float, float]:
        """The mean less and plus the standard deviation between seeds; the mean twice for a single one."""
        return self.mean - (self.spread or 0.0), self.mean + (self.spread or 0.0)


@dataclass(frozen=True)
class Noise:
    """The standard deviation between seeds, and how many differences it is known by (none: it was given)."""

    deviation: float
    num_freedoms: int | None

    @property
    def quantile(self) -> float:
        known = self.num_freedoms
        return _MANY if known is None or known > len(_QUANTILES) else _QUANTILES[known - 1]


def pooled_noise(groups: Iterable[Sequence[float]], given: float = 0.0) -> Noise | None:
    """Return the noise between seeds over all variants together: two or three seeds of one say little.

    `given` is used where no variant has two seeds; None if that is not known either.

    >>> pooled_noise([[1.0, 3.0], [2.0, 4.0], [7.0]])
    Noise(deviation=1.4142135623730951, num_freedoms=2)
    """
    several = [values for values in groups if len(values) > 1]
    freedoms = sum(len(values) - 1 for values in several)
    if not freedoms:
        return Noise(given, None) if given else None
    squares = sum((value - mean(values)) ** 2 for values in several for value in values)
    return Noise(math.sqrt(squares / freedoms), freedoms)


def compare(results: Sequence[Mapping[str, Any]], baseline: str, seed_spread: float = 0.0) -> list[Row]:
    """Return a row for each variant on each corpus with each budget, in the order of the results."""
    parts = dict.fromkeys((str(result["corpus"]), str(result["budget"])) for result in results)
    return [row for corpus, budget in parts for row in _compare(results, corpus, budget, baseline, seed_spread)]


def _compare(
    results: Sequence[Mapping[str, Any]], corpus: str, budget: str, baseline: str, seed_spread: float
) -> list[Row]:
    mine = [result for result in results if (result["corpus"], result["budget"]) == (corpus, budget)]
    groups = {name: [r for r in mine if r["variant"] == name] for name in dict.fromkeys(r["variant"] for r in mine)}
    values = {name: [float(result["bits_per_byte"]) for result in group] for name, group in groups.items()}
    noise = pooled_noise(values.values(), seed_spread)
    rows = []
    for name, group in groups.items():
        difference = mean(values[name]) - mean(values[baseline]) if baseline in values else None
        uncertainty = None
        if noise is not None and difference is not None:
            parts = 1 / len(values[name]) + 1 / len(values[baseline])
            uncertainty = noise.quantile * noise.deviation * math.sqrt(parts)
        verdict = judge_difference(difference, uncertainty) if name != baseline else "baseline"
        rows.append(Row(corpus, budget, name, values[name], difference, uncertainty, verdict, group))
    return rows


def judge_difference(difference: float | None, uncertainty: float | None) -> Verdict:
    """Return whether a difference in bits per byte is beyond its uncertainty.

    >>> judge_difference(-0.05, 0.02), judge_difference(0.01, 0.02), judge_difference(-0.3, None)
    ('better', 'unclear', 'unclear')
    """
    if difference is None or uncertainty is None or abs(difference) <= uncertainty:
        return "unclear"
    return "better" if difference < 0 else "worse"
