"""Drawing the tokens that an update compares: all of its batch, and others by how frequent they are.

Each target is compared with a part of the vocabulary instead of all of it, and what is drawn stands for what is not, so
that the sum over the vocabulary comes out right on average (docs/design/vocabulary.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.data.loader import Loader
from headrace.distributed.group import ALONE, Group
from headrace.models.candidates import Candidates
from headrace.models.counts import WORTHWHILE_CANDIDATES, round_candidates
from headrace.training.config import TrainingConfig

COUNTED_TOKENS = 1 << 20
"""Tokens of the text that are counted to know how frequent each is."""
NEVER = -1e30
"""Offset of a candidate that only fills up the number."""


def open_sampler(config: TrainingConfig, vocab_size: int, text: Loader) -> VocabularySampler | None:
    """Return what draws the tokens that updates compare, by how often they occur in a part of the text; None: nothing.

    What is counted is the same for the same text, so that a run that is resumed draws what it would have drawn.
    """
    total = config.num_logits(vocab_size)
    if total == vocab_size:
        return None
    counts = np.zeros(vocab_size, dtype=np.int64)
    for sample in text.sample(COUNTED_TOKENS):
        if sample.batch is not None:
            counts += np.bincount(sample.batch.targets.ravel(), minlength=vocab_size)
    return VocabularySampler(counts, total, config.sampled_tokens, config.seed)


def open_flat_sampler(config: TrainingConfig, vocab_size: int) -> VocabularySampler | None:
    """Return what draws all tokens alike, for measurements: only how many tokens are compared matters there."""
    total = config.num_logits(vocab_size)
    if total == vocab_size:
        return None
    return VocabularySampler(np.ones(vocab_size), total, config.sampled_tokens, config.seed)


class VocabularySampler:
    """Draws the candidates of each update, a pure function of the seed, the step and the tokens of the batch."""

    def __init__(self, counts_V: npt.NDArray[Any], num_candidates: int, num_drawn: int, seed: int) -> None:
        """`counts_V`: how often each token occurs in a part of the text; `num_candidates`: how many are usual."""
        self._order = np.random.default_rng(seed).permutation(len(counts_V))
        self._weights = counts_V[self._order] + 1.0  # a part of the text lacks rare tokens
        self._num_candidates, self._num_drawn, self._seed = num_candidates, num_drawn, seed

    def draw(self, step: int, batch_tokens: Sequence[npt.NDArray[Any]], group: Group = ALONE) -> Candidates | None:
        """Return the candidates of an update over these tokens, of all processes; None: the whole vocabulary."""
        size = len(self._weights)
        is_used = np.zeros(size, dtype=bool)
        for tokens in batch_tokens:
            is_used[tokens] = True
        is_used = _of_all(is_used, group)
        used = np.flatnonzero(is_used)
        total = self._num_candidates
        if total - len(used) < max(1, self._num_drawn // 2):  # a batch of unusually many different tokens
            total = round_candidates(len(used) + self._num_drawn)
        if total > WORTHWHILE_CANDIDATES * size:
            return None
        start = np.random.Generator(np.random.Philox(key=[self._seed, step])).random()
        drawn, chances = draw_by_weight(self._weights * ~is_used[self._order], total - len(used), start)
        spare = total - len(used) - len(drawn)
        ids = np.concatenate([used, self._order[drawn], np.zeros(spare, dtype=used.dtype)])
        offsets = np.concatenate([np.zeros(len(used)), -np.log(chances), np.full(spare, NEVER)]).astype(np.float32)
        places = np.zeros(size, dtype=np.int32)
        places[used] = np.arange(len(used))
        return Candidates(ids, offsets, places)


def draw_by_weight(
    weights: npt.NDArray[np.float64], number: int, start: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Draw about `number` indices, each with a chance in proportion to its weight, at most 1; return both.

    The chances lie end to end on a line. Marks one apart, the first at a random `start` below 1, hit what is drawn, so
    that every chance is exact, and the number is too, but for rounding.

    >>> [index.tolist() for index in draw_by_weight(np.array([8.0, 1.0, 0.0, 1.0]), number=2, start=0.2)]
    [[0, 3], [1.0, 0.5]]
    """
    number = min(number, int(np.count_nonzero(weights)))
    chances = weights * (number / weights.sum())
    while (chances > 1).any():
        is_open = chances < 1
        left = number - np.count_nonzero(~is_open)
        chances = np.where(is_open, weights * (left / weights[is_open].sum()), 1.0)
    drawn = np.flatnonzero(np.diff(np.floor(np.cumsum(chances) + start), prepend=0.0) > 0)[:number]
    return drawn, chances[drawn]


def _of_all(is_used: npt.NDArray[np.bool_], group: Group) -> npt.NDArray[np.bool_]:
    """Return which tokens any process of a group has in its part of the batch."""
    if group.world_size == 1:
        return is_used
    everyones = group.gather_rows(torch.from_numpy(is_used.view(np.uint8))[None], "gathering the tokens of a batch")
    return np.logical_or.reduce(everyones.numpy(), axis=0)  # type: ignore[no-any-return]
