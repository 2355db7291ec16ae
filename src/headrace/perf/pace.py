"""How fast a network would be trained on this machine, and how far it would get in a given time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.models.config import ModelConfig
from headrace.models.counts import count, num_candidates
from headrace.perf.flops import count_work
from headrace.perf.loss_law import Exposure, Law
from headrace.perf.search_space import batch_size_for, is_too_large, is_vocabulary_too_large


@dataclass(frozen=True)
class Pace:
    """Training time per token, in two parts: the arithmetic, and the overhead of a block whatever its width."""

    per_flop: float
    """Seconds per FLOP."""
    per_layer: float
    """Seconds per layer."""

    def seconds_per_token(self, flops: float, num_layers: int) -> float:
        """Return the seconds that a network takes for a token, with these FLOPs per token."""
        return self.per_flop * flops + self.per_layer * num_layers

    def slowed_to(self, small: tuple[float, int, float], wide: tuple[float, int, float]) -> Pace:
        """Return this pace slowed down so that neither of two networks is expected to be faster than it is.

        `small`, `wide`: the FLOPs per token, layers and seconds per token of each; they have equally many layers.
        Neither part of the pace gets faster: what the small network loses more than the wide one is overhead.

        >>> slow = Pace(per_flop=1e-11, per_layer=2e-6).slowed_to((1e6, 4, 4.6e-5), (5e6, 4, 1.26e-4))
        >>> round(slow.per_flop * 1e11, 6), round(slow.per_layer * 1e6, 6)
        (2.0, 6.5)
        """
        slope = (wide[2] - small[2]) / (wide[0] - small[0])
        per_flop = max(self.per_flop, slope)
        overheads = [(seconds - per_flop * flops) / num_layers for flops, num_layers, seconds in (small, wide)]
        return Pace(per_flop, max(self.per_layer, *overheads))


USEFUL_EPOCHS = 13.0
"""Passes over a text up to which batches grow with the tokens of a run: text that comes round wants small ones."""
USUAL_SHARE_OF_PEAK = 0.74
"""Share of the measured peak at which the arithmetic of training runs (docs/LOG.md)."""
ROUGH_BATCH_TOKENS = 4096
"""Batch of the first estimate of the tokens of a run, by which its batch is chosen."""
USUAL_LAYER_S = 2.2e-6
"""Seconds per token and layer besides."""


def usual_pace(peak_flops: float) -> Pace:
    """Return the pace to expect of a machine with this peak, before anything was trained on it."""
    return Pace(1 / (USUAL_SHARE_OF_PEAK * peak_flops), USUAL_LAYER_S)


@dataclass(frozen=True)
class Prospect:
    """The result that a network is expected to reach in the time."""

    exposure: Exposure
    batch_size: int
    tokens_per_second: float
    bits_per_byte: float

    @property
    def broken_rules(self) -> int:
        """How many rules it breaks: a network that is too large for the text, a vocabulary that is for the run."""
        seen = self.exposure
        is_network_too_large = is_too_large(seen.block_parameters, seen.unique_tokens)
        return is_network_too_large + is_vocabulary_too_large(seen.vocab_size, seen.tokens)

    @property
    def rank(self) -> tuple[int, float]:
        """What networks are ordered by, the best first: rules come before the expected loss."""
        return self.broken_rules, self.bits_per_byte


def fit_pace(measured: Sequence[tuple[float, int, float]]) -> Pace:
    """Fit a pace to measured (FLOPs per token, layers, seconds per token), with equal weight on relative errors.

    >>> pace = fit_pace([(1e6, 2, 3e-5), (4e6, 4, 8e-5)])
    >>> round(pace.per_flop * 1e11, 6), round(pace.per_layer * 1e5, 6)
    (1.0, 1.0)
    """
    shares = np.array([[flops / seconds, layers / seconds] for flops, layers, seconds in measured])
    if len(measured) > 1:
        scale = shares.max(axis=0)
        per_flop, per_layer = np.linalg.lstsq(shares / scale, np.ones(len(shares)), rcond=None)[0] / scale
        if per_flop > 0 and per_layer > 0:
            return Pace(float(per_flop), float(per_layer))
    return Pace(float(shares[:, 0].sum() / (shares[:, 0] ** 2).sum()), 0.0)


def flops_per_token(
    model: ModelConfig,
    mean_window: float,
    batch_tokens: int,
    update_flops: Mapping[str, float],
    num_drawn: int = 0,
) -> float:
    """Return the training FLOPs per token, optimizer included; its share shrinks as the batch grows.

    `mean_window`: tokens that the network sees at once, averaged over the run. `num_drawn`: tokens of the vocabulary
    that updates compare beside those of their batch; 0: all.
    """
    num_logits = num_candidates(model.vocab_size, batch_tokens, num_drawn)
    work = count_work(model, mean_window, batch_tokens, update_flops, num_logits=num_logits)
    return sum(work.timed_flops.values()) / batch_tokens


def foresee(
    model: ModelConfig,
    sequence_length: int,
    mean_window: float,
    update_flops: Mapping[str, float],
    unique_tokens: float,
    bytes_per_token: float,
    seconds: float,
    pace: Pace,
    law: Law,
    batch_size: int = 0,
    num_drawn: int = 0,
) -> Prospect:
    """Estimate the result of training a network for this many seconds; a `batch_size` of 0 is chosen to suit.

    `mean_window`: tokens that the network sees at once, averaged over the run. `num_drawn`: tokens of the vocabulary
    that updates compare beside those of their batch; 0: all.
    """
    least_flops = flops_per_token(model, mean_window, ROUGH_BATCH_TOKENS, update_flops, num_drawn)
    rough = seconds / pace.seconds_per_token(least_flops, model.num_layers)
    useful = min(rough, USEFUL_EPOCHS * unique_tokens)
    batch_size = batch_size or batch_size_for(useful, sequence_length)
    flops = flops_per_token(model, mean_window, batch_size * sequence_length, update_flops, num_drawn)
    tokens_per_second = 1 / pace.seconds_per_token(flops, model.num_layers)
    counts = count(model, sequence_length)
    tokens = max(1.0, seconds * tokens_per_second)
    exposure = Exposure(
        counts.num_parameters, counts.block_weights, model.vocab_size, tokens, unique_tokens, bytes_per_token
    )
    return Prospect(exposure, batch_size, tokens_per_second, law.bits_per_byte(exposure))
