"""A scaling law that ranks networks of different sizes after a given time, and the loss to expect of one of them.

The loss, in bits per byte, is a sum: a floor; what a small network cannot express; what too little text cannot teach;
what a small vocabulary cannot see of a text in one window; rare tokens, of which a large vocabulary has many; and
overfitting to a repeated text. Coefficients and exponents were fitted to runs of one and five minutes on two corpora
(docs/LOG.md), without dropout and in windows of 128 tokens; those of capacity, of the vocabulary and of overfitting
with dropout, and how many weights a text can fill, were set by what later runs showed. The floor belongs to the corpus
and is not known, so the law says which of several networks should end lowest; which loss to expect of it is told from
a short run of that network (`Expectation`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

# Passes after which another is worth about a third of the first: 15 for large networks (Muennighoff et al., 2023), and
# fewer for small ones that learn fast.
REPEATS_WORTH = 5.0
CAPACITY_EXPONENT, TEXT_EXPONENT = 0.25, 0.35  # of a grid, with the coefficients (python benchmarks/lab fit)
HARMLESS_EPOCHS = 2.0  # a second pass teaches as the first does, and nothing is known by heart (docs/recipe.md)
FILLED_WEIGHTS = 0.6
"""Weights in the blocks that each byte of a text can fill: more do not lower the loss (docs/LOG.md)."""
OVERFITTING_WITHOUT_DROPOUT = 0.02  # 140 kB, 64 x 4: 2.45 after 9 epochs, 2.63 after 18 (docs/design/budget.md)
FITTED_TOKENS, FITTED_BLOCKS = (5e5, 8e6), (1e5, 3e6)
"""Tokens and block weights of the runs that the law was fitted to."""
SHARES: tuple[float, ...] = tuple(2.0 ** (-number / 4) for number in range(60))
"""Shares of a run at which its loss may be lowest, where it goes through its text too often."""
FALL_PER_EFOLD, REPEATS_TEACH = 0.4, 2.0
"""Bits per byte by which the loss of a short run falls at first while useful text grows e-fold; and passes after which
another is worth about a third of the first, for that fall (`REPEATS_WORTH` is for ranking). Both are what four corpora
showed between half a minute and five minutes (docs/LOG.md)."""
MOST_FALL = 0.25  # share of the loss by which it falls in an e-fold at most: texts that are easy from the beginning
CHECKED_EFOLDS = 2.6  # e-folds of useful text between a short run and the longest run that it was compared with
RELATIVE_ERROR, ERROR_PER_EFOLD, ERROR_BEYOND = 0.05, 0.013, 0.05
"""Half of the interval of an expectation, as a share of it: near the run that was measured, for each e-fold of useful
text between the two, and for each e-fold beyond those that were checked."""


@dataclass(frozen=True)
class Exposure:
    """The size of a network and the text that it is trained on: everything that the law depends on."""

    parameters: float
    block_parameters: float
    """Parameters without embedding and head, which hold a vocabulary rather than what was learned of the text."""
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

        >>> round(Exposure(1e6, 8e5, 1024, tokens=4e6, unique_tokens=1e6, bytes_per_token=3).useful_tokens / 1e6, 2)
        3.26
        """
        return self._useful(REPEATS_WORTH)

    @property
    def pressure(self) -> float:
        """How strongly repeats push a network to learn its text by heart: more for one that is large for the text.

        >>> Exposure(1e6, 8e5, 1024, tokens=6e6, unique_tokens=2e5, bytes_per_token=3).pressure
        56.0
        """
        too_often = max(0.0, self.epochs - HARMLESS_EPOCHS)
        return too_often * math.sqrt(self.block_parameters / self.unique_tokens)

    def shortened(self, share: float) -> Exposure:
        """Return the exposure of a run that ends after a share of the text."""
        return replace(self, tokens=share * self.tokens)

    def terms(self, capacity_exponent: float = CAPACITY_EXPONENT, text_exponent: float = TEXT_EXPONENT) -> list[float]:
        """Return the factor of each coefficient of the law."""
        useful_bytes = self.useful_tokens * self.bytes_per_token
        filled = min(self.block_parameters, FILLED_WEIGHTS * self.unique_tokens * self.bytes_per_token)
        return [
            1.0,
            (1e6 / filled) ** capacity_exponent,
            (1e6 / useful_bytes) ** text_exponent,
            math.sqrt(1000 / self.vocab_size),
            math.sqrt(self.vocab_size / min(self.tokens, self.unique_tokens)),
            self.pressure,
        ]

    def efolds_beyond(self, shorter: Exposure) -> float:
        """Return the natural logarithm of how much more a run teaches than a shorter one of the same network."""
        return max(0.0, math.log(self._useful(REPEATS_TEACH) / shorter._useful(REPEATS_TEACH)))

    def beyond_fitted(self) -> str:
        """Say how far this is beyond the runs that the law was fitted to; empty where it is among them."""
        beyond = []
        for value, (least, most), what in (
            (self.tokens, FITTED_TOKENS, "the text"),
            (self.block_parameters, FITTED_BLOCKS, "the network"),
        ):
            factor = max(least / value, value / most)
            if factor > 1.5:
                beyond.append(f"{what} is {factor:,.0f} times {'larger' if value > most else 'smaller'}")
        return " and ".join(beyond)

    def _useful(self, repeats_worth: float) -> float:
        if self.epochs <= 1:
            return self.tokens
        return self.unique_tokens * (1 + repeats_worth * (1 - math.exp(-(self.epochs - 1) / repeats_worth)))


@dataclass(frozen=True)
class Law:
    """Coefficients in bits per byte; the defaults were fitted to small runs (docs/LOG.md)."""

    floor: float = 0.2
    capacity: float = 0.3
    text: float = 1.33
    vocabulary: float = 0.35
    rare: float = 1.5
    overfitting: float = 0.0003

    def bits_per_byte(self, exposure: Exposure) -> float:
        """Return the expected loss at the best end: of a run that goes through its text too often, before its limit."""
        return self._at_end(exposure.shortened(self.best_share(exposure)))

    def best_share(self, exposure: Exposure) -> float:
        """Return the share of a run after which it should end: later, it would only learn its text by heart."""
        if exposure.epochs <= HARMLESS_EPOCHS:
            return 1.0
        return min((self._at_end(exposure.shortened(share)), share) for share in SHARES)[1]

    def _at_end(self, exposure: Exposure) -> float:
        return float(np.dot(self._coefficients(), exposure.terms()))

    def _coefficients(self) -> list[float]:
        return [self.floor, self.capacity, self.text, self.vocabulary, self.rare, self.overfitting]


def law_for(dropout: float | None) -> Law:
    """Return the law for a given dropout; None leaves it to the recipe. Without any, a text is known by heart sooner.

    >>> law_for(None) == law_for(0.2) == Law(), law_for(0).overfitting
    (True, 0.02)
    """
    return Law() if dropout is None or dropout > 0 else Law(overfitting=OVERFITTING_WITHOUT_DROPOUT)


@dataclass(frozen=True)
class Expectation:
    """The loss to expect of a run, told from that of a shorter run of the same network."""

    bits_per_byte: float
    interval: tuple[float, float]
    """The range in which it should lie; wider the further the two runs are apart."""
    unchecked_efolds: float
    """E-folds of useful text by which the two runs are further apart than any that were compared."""

    @classmethod
    def of(cls, exposure: Exposure, measured: Exposure, loss: float) -> Expectation:
        """Return the expectation for a run, where a shorter one had this loss.

        >>> shorter = Exposure(1e6, 8e5, 8192, tokens=1e6, unique_tokens=1e7, bytes_per_token=4)
        >>> round(Expectation.of(replace(shorter, tokens=1e7), shorter, loss=1.8).bits_per_byte, 2)
        1.08
        """
        efolds = exposure.efolds_beyond(measured)
        unchecked = max(0.0, efolds - CHECKED_EFOLDS)
        expected = loss * math.exp(-efolds * min(MOST_FALL, FALL_PER_EFOLD / max(loss, 1e-9)))
        half = expected * (RELATIVE_ERROR + ERROR_PER_EFOLD * efolds + ERROR_BEYOND * unchecked)
        return cls(expected, (expected - half, expected + half), unchecked)

    def moved(self, difference: float) -> Expectation:
        """Return the expectation for another network, which the law ranks by this difference in bits per byte."""
        low, high = self.interval
        return replace(
            self, bits_per_byte=self.bits_per_byte + difference, interval=(low + difference, high + difference)
        )
