"""How low a loss to expect of a network of some size after some text.

The law, in bits per byte: a floor; what a small network cannot express; what little text cannot teach; rare tokens,
which a large vocabulary has many of; and what is learnt by heart when a text comes again and again. Its coefficients
and exponents are those of earlier experiments (docs/LOG.md); short trainings tell only the floor, the corpus's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

# Passes after which another is worth about a third of the first (Muennighoff et al., 2023).
REPEATS_WORTH = 15.4
CAPACITY_EXPONENT, TEXT_EXPONENT, RARE_EXPONENT = 0.30, 0.25, 0.50
HARMLESS_EPOCHS, REPEATS_EXPONENT = 4.0, 0.60


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
        too_often = max(0.0, self.epochs - HARMLESS_EPOCHS) ** REPEATS_EXPONENT
        return [
            1.0,
            (1e6 / self.parameters) ** CAPACITY_EXPONENT,
            (1e6 / useful_bytes) ** TEXT_EXPONENT,
            (self.vocab_size / self.useful_tokens) ** RARE_EXPONENT,
            too_often * self.parameters / self.unique_tokens,
        ]


@dataclass(frozen=True)
class Law:
    """Coefficients in bits per byte; those here were fitted to small trainings (docs/LOG.md)."""

    floor: float = 0.8
    capacity: float = 0.35
    text: float = 0.95
    rare: float = 0.8
    overfitting: float = 0.045

    def bits_per_byte(self, exposure: Exposure) -> float:
        return float(np.dot(self._coefficients(), exposure.terms()))

    def fitted(self, trials: Sequence[tuple[Exposure, float]]) -> Law:
        """With the floor that the trial which saw most text measured. Short trials tell no more: a network that saw a
        hundred batches says how hard its text is, not what size would be best after a hundred thousand."""
        if not trials:
            return self
        exposure, loss = max(trials, key=lambda trial: trial[0].tokens * trial[0].bytes_per_token)
        return replace(self, floor=self.floor + loss - self.bits_per_byte(exposure))

    def _coefficients(self) -> list[float]:
        return [self.floor, self.capacity, self.text, self.rare, self.overfitting]
