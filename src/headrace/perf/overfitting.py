"""Whether a network learns its text by heart: validation turns up beyond noise, while training goes down.

Why it is judged like this: docs/design/overfitting.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

LEAST_EVALUATIONS = 2
"""Evaluations in a row that must lie above the lowest one."""
TOKEN_SPREAD = 0.6
"""Standard deviation, in nats per token, of the difference between two evaluations on the same text: divided by the
root of the number of tokens, it is how far a difference can be trusted. An assumption: it was not measured."""
USUAL_JITTER, PRIOR_BENDS = 0.01, 3
"""Jitter of evaluations, in nats per token, that is expected before it is seen, and the bends that outweigh it."""
CERTAIN = 5.0
"""Standard deviations of noise that a rise must exceed."""
LEAST_FALL = 0.005
"""Share by which the training loss must have fallen meanwhile: more than the noise of its average."""


@dataclass(frozen=True)
class Judged:
    """An evaluation on the sample that all evaluations of a run are compared by, and the run at that moment."""

    step: int
    tokens: int
    """Tokens trained on so far."""
    elapsed_s: float
    loss: float
    training_loss: float
    """Training loss, averaged over the newest updates."""
    sample_tokens: int
    """Tokens of the sample."""


@dataclass(frozen=True)
class Rise:
    """A validation loss that has risen from its lowest value while the training loss fell."""

    best: Judged
    newest: Judged
    num_evaluations: int
    """Evaluations since the lowest one."""


def find_rise(evaluations: Sequence[Judged]) -> Rise | None:
    """Return the rise in which a run is at its newest evaluation; None if there is none that noise does not explain.

    Evaluations on other samples than most, as the last one of older runs, are left out.
    """
    if not evaluations:
        return None
    sample_tokens, _ = Counter(judged.sample_tokens for judged in evaluations).most_common(1)[0]
    same = [judged for judged in evaluations if judged.sample_tokens == sample_tokens]
    best = min(same, key=lambda judged: judged.loss)
    since = [judged for judged in same if judged.step > best.step]
    if len(since) < LEAST_EVALUATIONS:
        return None
    margin = CERTAIN * noise([judged.loss for judged in same], sample_tokens)
    has_risen = all(judged.loss > best.loss + margin for judged in since[-LEAST_EVALUATIONS:])
    still_learns = since[-1].training_loss < (1 - LEAST_FALL) * best.training_loss
    return Rise(best, since[-1], len(since)) if has_risen and still_learns else None


def noise(losses: Sequence[float], sample_tokens: int) -> float:
    """Estimate the standard deviation of one evaluation: of its sample, and of weights that jitter from step to step.

    A curve that falls and then rises is bent upwards everywhere: what bends it downwards is jitter.

    >>> smooth, jittery = [3.0, 2.0, 1.5, 1.4, 1.5], [3.0, 1.4, 1.5, 1.4, 1.5]
    >>> [round(noise(losses, sample_tokens=10_000), 3) for losses in (smooth, jittery)]
    [0.009, 0.048]
    """
    slopes = [after - before for before, after in pairwise(losses)]
    bends = [min(0.0, after - before) for before, after in pairwise(slopes)]
    # Of independent values, bends have six times their variance, and half of them are negative.
    squares = PRIOR_BENDS * USUAL_JITTER**2 + sum(bend * bend for bend in bends) / 3
    sampling = TOKEN_SPREAD / math.sqrt(max(sample_tokens, 1))
    return math.hypot(sampling, math.sqrt(squares / (PRIOR_BENDS + len(bends))))
