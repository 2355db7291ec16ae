"""A scaling law: the loss to expect of a network of a given size after a given amount of text.

The loss, in bits per byte, is a sum: a floor; what a small network cannot express; what too little text cannot teach;
rare tokens, of which a large vocabulary has many; and overfitting to a repeated text. Coefficients and exponents come
from earlier experiments (docs/LOG.md); short runs refit only the floor, which belongs to the corpus.
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
    """The size of a network and the text that it is trained on: everything that the law depends on."""

    parameters: float
    vocab_size: int
    tokens: float
    """Tokens trained on, repeats included."""
    unique_tokens: float
    bytes_per_token: float

    @property
    def epochs(self) -> float:
        return self.tokens / self.unique_tokens

    @property
    def useful_tokens(self) -> float:
        """The number of fresh tokens that would teach as much as these with their repeats.

        >>> round(Exposure(1e6, 1024, tokens=4e6, unique_tokens=1e6, bytes_per_token=3).useful_tokens / 1e6, 2)
        3.73
        """
        if self.epochs <= 1:
            return self.tokens
        return self.unique_tokens * (1 + REPEATS_WORTH * (1 - math.exp(-(self.epochs - 1) / REPEATS_WORTH)))

    def terms(self) -> list[float]:
        """Return the factor of each coefficient of the law."""
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
    """Coefficients in bits per byte; the defaults were fitted to small runs (docs/LOG.md)."""

    floor: float = 0.8
    capacity: float = 0.35
    text: float = 0.95
    rare: float = 0.8
    overfitting: float = 0.045

    def bits_per_byte(self, exposure: Exposure) -> float:
        """Return the expected loss."""
        return float(np.dot(self._coefficients(), exposure.terms()))

    def fitted(self, short_runs: Sequence[tuple[Exposure, float]]) -> Law:
        """Return this law with its floor refitted to the short run that saw the most text.

        Nothing else is refitted: a hundred batches show how hard the text is, not which size would be best after a
        hundred thousand.
        """
        if not short_runs:
            return self
        exposure, loss = max(short_runs, key=lambda run: run[0].tokens * run[0].bytes_per_token)
        return replace(self, floor=self.floor + loss - self.bits_per_byte(exposure))

    def _coefficients(self) -> list[float]:
        return [self.floor, self.capacity, self.text, self.rare, self.overfitting]
