"""Sampling: how the next token is drawn from what a network predicts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.errors import UsageError

LEAST_TEMPERATURE = 1e-6  # below it, the likeliest token is drawn anyway, and logits would overflow


@dataclass(frozen=True)
class Sampling:
    """The options of generating text."""

    max_tokens: int = 200
    """Tokens to generate at most, without the prompt."""
    temperature: float = 0.8
    """Divisor of the logits; 0 takes the likeliest token."""
    top_k: int = 0
    """Number of likeliest tokens to draw from; 0: all."""
    top_p: float = 1.0
    """Probability that the tokens to draw from reach together, the likeliest first; 1: all."""
    seed: int = 0
    """Seed of the draws: the same seed gives the same text."""
    num_samples: int = 1
    """Texts to generate from one prompt, in one batch."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise UsageError("temperature and top_k must not be negative, and top_p must lie between 0 and 1")


def draw(logits_BV: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Return one token for each row of logits."""
    if sampling.temperature < LEAST_TEMPERATURE:
        return logits_BV.argmax(dim=-1)
    logits_BV = logits_BV / sampling.temperature
    if sampling.top_k:
        least = logits_BV.topk(min(sampling.top_k, logits_BV.shape[-1])).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least, -torch.inf)
    probabilities = logits_BV.softmax(dim=-1)
    if sampling.top_p < 1:
        ordered, places = probabilities.sort(descending=True)
        is_beyond = ordered.cumsum(dim=-1) - ordered >= sampling.top_p
        probabilities = probabilities.scatter(1, places, ordered.masked_fill(is_beyond, 0))
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]
