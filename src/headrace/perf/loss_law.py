"""How low a loss to expect of a network of some size after some text.

The law, in bits per byte: a floor; what a small network cannot express; what little text cannot teach; rare tokens,
which a large vocabulary has many of; and what is learnt by heart when a text comes again and again. Its exponents are
fixed, so that it is linear in its coefficients and a few short trainings can fit them, starting from those of earlier
experiments (docs/LOG.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Passes after which another is worth about a third of the first (Muennighoff et al., 2023).
REPEATS_WORTH = 15.4
CAPACITY_EXPONENT, TEXT_EXPONENT, RARE_EXPONENT = 0.30, 0.25, 0.50
# How far a trial may move a coefficient, as a share of it, before the earlier experiments weigh as much.
TRUST = 0.5
TRIAL_NOISE = 0.02  # bits per byte


@dataclass(frozen=True)
class Exposure:
    """What a network gets to see: everything that the law depends on."""

    parameters: float
    vocab_size: int
    tokens: float
    """Trained on, repeats included."""
    unique_tokens: float
    bytes_per_token: float

    @property
    def epochs(self) -> float:
        return self.tokens / self.unique_tokens

    @property
    def useful_tokens(self) -> float:
        """As many fresh tokens would teach as much.

        >>> round(Exposure(1e6, 1024, tokens=4e6, unique_tokens=1e6, bytes_per_token=3).useful_tokens / 1e6, 2)
        3.73
        """
        if self.epochs <= 1:
            return self.tokens
        return self.unique_tokens * (1 + REPEATS_WORTH * (1 - math.exp(-(self.epochs - 1) / REPEATS_WORTH)))

    def terms(self) -> list[float]:
        """What each coefficient of the law is multiplied by."""
        useful_bytes = self.useful_tokens * self.bytes_per_token
        repeated = max(0.0, self.epochs - 1) * self.parameters / (self.unique_tokens * self.bytes_per_token)
        return [
            1.0,
            (1e6 / self.parameters) ** CAPACITY_EXPONENT,
            (1e6 / useful_bytes) ** TEXT_EXPONENT,
            (self.vocab_size / self.useful_tokens) ** RARE_EXPONENT,
            repeated,
        ]


@dataclass(frozen=True)
class Law:
    """Coefficients in bits per byte; those here were fitted to small trainings (docs/LOG.md)."""

    floor: float = 0.8
    capacity: float = 0.35
    text: float = 0.95
    rare: float = 0.8
    overfitting: float = 0.0175

    def bits_per_byte(self, exposure: Exposure) -> float:
        return float(np.dot(self._coefficients(), exposure.terms()))

    def fitted(self, trials: Sequence[tuple[Exposure, float]]) -> Law:
        """Moved towards what trials measured: least squares in which the coefficients so far count as measurements."""
        before = np.array(self._coefficients())
        if not trials:
            return self
        terms = np.array([exposure.terms() for exposure, _ in trials]) * before / TRIAL_NOISE
        misses = np.array([loss - self.bits_per_byte(exposure) for exposure, loss in trials]) / TRIAL_NOISE
        pulled = np.vstack([terms, np.eye(len(before)) / TRUST])
        change, *_ = np.linalg.lstsq(pulled, np.concatenate([misses, np.zeros(len(before))]), rcond=None)
        return Law(*(float(value) for value in before * np.maximum(1 + change, 0.05)))

    def _coefficients(self) -> list[float]:
        return [self.floor, self.capacity, self.text, self.rare, self.overfitting]
