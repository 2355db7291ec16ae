"""Gains from paired measurements: the two sides take turns, so that what slows the machine slows both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Pairs = Sequence[tuple[float, float]]
"""Pairs of seconds per token: the reference's, and those of the option measured right after it."""

# If errors are normal, all but one in three hundred repetitions end within this many standard deviations.
NUM_DEVIATIONS = 3.0
LEAST_NOISE = 0.005  # the least noise of a ratio: a few pairs can agree by chance


@dataclass(frozen=True)
class Gain:
    """The gain in tokens/s, and how far a repetition of the measurement may be from it."""

    percent: float
    spread_percent: float

    @property
    def is_clear(self) -> bool:
        """Whether a repetition would show a gain, too."""
        return self.percent > self.spread_percent


def noise(options: Sequence[Pairs]) -> float:
    """Estimate the standard deviation of one pair's log ratio, pooled over all options: one has too few pairs.

    >>> round(noise([[(1.0, 2.0), (1.0, 2.0)], [(1.1, 1.0), (1.0, 1.1)]]), 3)
    0.095
    """
    logs = [[math.log(before / after) for before, after in pairs] for pairs in options]
    squares = sum(sum((log - statistics.fmean(seen)) ** 2 for log in seen) for seen in logs if len(seen) > 1)
    freedom = sum(len(seen) - 1 for seen in logs if len(seen) > 1)
    return max(LEAST_NOISE, math.sqrt(squares / freedom)) if freedom else LEAST_NOISE


def gain(pairs: Pairs, pooled_noise: float) -> Gain:
    """Return the median ratio as a gain; its spread covers the error of this measurement and of a repetition.

    >>> gain([(2.0, 1.0), (2.0, 1.0)], 0.01)
    Gain(percent=100.0, spread_percent=6.0)
    """
    ratios = [before / after for before, after in pairs]
    middle = statistics.median(ratios)
    deviation = max(pooled_noise, noise([pairs]))
    spread = NUM_DEVIATIONS * deviation * math.sqrt(2 / len(pairs))
    return Gain(100 * (middle - 1), round(100 * middle * spread, 2))


def combined(gains: Sequence[Gain]) -> Gain:
    """Return the gain of several options together: ratios multiply, relative spreads add as independent errors do.

    >>> combined([Gain(100.0, 0.0), Gain(50.0, 15.0)])
    Gain(percent=200.0, spread_percent=30.0)
    """
    ratio = math.prod(1 + one.percent / 100 for one in gains)
    relative = math.sqrt(sum((one.spread_percent / (100 + one.percent)) ** 2 for one in gains))
    return Gain(100 * (ratio - 1), 100 * ratio * relative)
