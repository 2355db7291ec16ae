"""Gains from paired trials: the two sides take turns, so that what slows the machine slows both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Pairs = Sequence[tuple[float, float]]
"""Seconds per token: of the reference, and of what is tried right after it."""

# Of a normal distribution: all but one in three hundred second runs end within this many deviations.
NUM_DEVIATIONS = 3.0
LEAST_NOISE = 0.005  # of a ratio; fewer pairs than are needed to see the noise can look quieter than any machine is


@dataclass(frozen=True)
class Gain:
    """How much faster, and how far a second measurement of the same may be from this one."""

    percent: float
    spread_percent: float

    @property
    def is_clear(self) -> bool:
        """Whether a second measurement would be a gain too."""
        return self.percent > self.spread_percent


def noise(trials: Sequence[Pairs]) -> float:
    """The deviation of one pair's ratio, pooled over all trials: few pairs of one trial say little about it.

    >>> round(noise([[(1.0, 2.0), (1.0, 2.0)], [(1.1, 1.0), (1.0, 1.1)]]), 3)
    0.095
    """
    logs = [[math.log(before / after) for before, after in pairs] for pairs in trials]
    squares = sum(sum((log - statistics.fmean(seen)) ** 2 for log in seen) for seen in logs if len(seen) > 1)
    freedom = sum(len(seen) - 1 for seen in logs if len(seen) > 1)
    return max(LEAST_NOISE, math.sqrt(squares / freedom)) if freedom else LEAST_NOISE


def gain(pairs: Pairs, pooled_noise: float) -> Gain:
    """The median ratio; its spread covers this measurement's error and that of a second one.

    >>> gain([(2.0, 1.0), (2.0, 1.0)], 0.01)
    Gain(percent=100.0, spread_percent=6.0)
    """
    ratios = [before / after for before, after in pairs]
    middle = statistics.median(ratios)
    deviation = max(pooled_noise, noise([pairs]))
    spread = NUM_DEVIATIONS * deviation * math.sqrt(2 / len(pairs))
    return Gain(100 * (middle - 1), round(100 * middle * spread, 2))


def combined(gains: Sequence[Gain]) -> Gain:
    """One after the other: ratios multiply, relative spreads add like errors that know nothing of each other.

    >>> combined([Gain(100.0, 0.0), Gain(50.0, 15.0)])
    Gain(percent=200.0, spread_percent=30.0)
    """
    ratio = math.prod(1 + one.percent / 100 for one in gains)
    relative = math.sqrt(sum((one.spread_percent / (100 + one.percent)) ** 2 for one in gains))
    return Gain(100 * (ratio - 1), 100 * ratio * relative)
