"""Which networks to think of for a time and a corpus, how fast each would be trained, and on what batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.perf.flops import count_work
from headrace.perf.loss_law import Exposure, Law

VOCABULARIES = (512, 1024, 2048, 4096, 8192, 16_000, 32_000)
LARGE_CORPUS_BYTES, LARGE_CORPUS_VOCABULARY = 200e6, 16_000
LEAST_USES = 60  # of a token of the vocabulary in the corpus, on average
WIDTHS = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024)
LAYERS_PER_64 = (0.75, 1.0, 1.5)  # of the width
# Batches grow with the root of the tokens trained on: fewer, surer steps.
BATCH_TOKENS, BATCH_TOKENS_AT = 2048, 3e6
LEAST_BATCH_TOKENS, MOST_BATCH_TOKENS = 1024, 65_536


@dataclass(frozen=True)
class Pace:
    """Seconds of a token: so many for each FLOP, and so many for each block, whatever its width."""

    per_flop: float
    per_layer: float


@dataclass(frozen=True)
class Prospect:
    """What a network is expected to do in the time."""

    exposure: Exposure
    batch_size: int
    tokens_per_second: float
    bits_per_byte: float


def fit_pace(measured: Sequence[tuple[float, int, float]]) -> Pace:
    """From (FLOPs per token, layers, seconds per token) of what was trained; relative errors count alike.

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


def flops_per_token(model: ModelConfig, length: int, batch_tokens: int, update_flops: Mapping[str, float]) -> float:
    """Return the training FLOPs per token, optimizer included; its share shrinks as the batch grows."""
    return sum(count_work(model, length, batch_tokens, update_flops).timed_flops.values()) / batch_tokens


def batch_size_for(tokens: float, length: int) -> int:
    """Sequences per update of a run over so many tokens.

    >>> batch_size_for(3e6, 128), batch_size_for(1e5, 128), batch_size_for(5e7, 256)
    (16, 8, 32)
    """
    wanted = BATCH_TOKENS * math.sqrt(tokens / BATCH_TOKENS_AT)
    batch_tokens = 1 << round(math.log2(min(max(wanted, LEAST_BATCH_TOKENS), MOST_BATCH_TOKENS)))
    return max(1, batch_tokens // length)


def length_for(minutes: float) -> int:
    """Tokens per sequence: what comes from further back is learnt late.

    >>> length_for(5), length_for(60), length_for(600)
    (128, 256, 512)
    """
    return 128 if minutes < 20 else 256 if minutes < 240 else 512


def foresee(
    model: ModelConfig,
    length: int,
    update_flops: Mapping[str, float],
    unique_tokens: float,
    bytes_per_token: float,
    seconds: float,
    pace: Pace,
    law: Law,
    batch_size: int = 0,
) -> Prospect:
    """What training a network for so long would come to."""
    rough = seconds / (pace.per_flop * flops_per_token(model, length, MOST_BATCH_TOKENS, update_flops))
    batch_size = batch_size or batch_size_for(rough, length)
    flops = flops_per_token(model, length, batch_size * length, update_flops)
    tokens_per_second = 1 / (pace.per_flop * flops + pace.per_layer * model.num_layers)
    parameters = count(model, length).num_parameters
    tokens = max(1.0, seconds * tokens_per_second)
    exposure = Exposure(parameters, model.vocab_size, tokens, unique_tokens, bytes_per_token)
    return Prospect(exposure, batch_size, tokens_per_second, law.bits_per_byte(exposure))


def vocabularies_for(corpus_bytes: float) -> list[int]:
    """Sizes of which each token is seen often enough in a corpus, at about three bytes a token.

    A large corpus is not tokenised several times for a plan.

    >>> vocabularies_for(1_100_000), vocabularies_for(1000), vocabularies_for(1e9)
    ([512, 1024, 2048, 4096], [512], [16000])
    """
    if corpus_bytes > LARGE_CORPUS_BYTES:
        return [LARGE_CORPUS_VOCABULARY]
    return [size for size in VOCABULARIES if corpus_bytes / 3 >= LEAST_USES * size] or [VOCABULARIES[0]]


def expected_bytes_per_token(vocab_size: int) -> float:
    """Of English text, until a corpus has been tokenised.

    >>> [round(expected_bytes_per_token(size), 1) for size in (512, 4096, 32_000)]
    [2.0, 3.2, 4.4]
    """
    return max(1.0, 0.4 * math.log2(vocab_size) - 1.6)


def shapes() -> list[tuple[int, int]]:
    """Width and layers of networks from 0.1 to about 200 million parameters."""
    return [
        (width, layers)
        for width in WIDTHS
        for layers in sorted({max(2, round(width / 64 * each)) for each in LAYERS_PER_64})
    ]
