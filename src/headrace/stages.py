"""The stages that a training run spends its time in, under the names that its files, its display and reports use."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Stage(StrEnum):
    """One stage of training. A stage compares equal to its name, which is its key in saved files."""

    DATA_WAIT = "data wait"
    """Standing still until the next batch is there."""
    FORWARD = "forward"
    """Forward passes, with the head's loss and gradients."""
    BACKWARD = "backward"
    """Backward passes."""
    AGGREGATION = "aggregation"
    """Averaging gradients over processes, as far as the backward pass does not hide it."""
    OPTIMIZER = "optimizer"
    """Clipping the gradient and updating the weights."""
    EVALUATION = "evaluation"
    """Evaluating on the validation part, and writing a sample."""
    SAVING = "saving"
    """Writing checkpoints."""
    OTHER = "other"
    """Time that no other stage accounts for."""


COMPUTING = (Stage.FORWARD, Stage.BACKWARD)
UPDATING = (Stage.DATA_WAIT, *COMPUTING, Stage.AGGREGATION, Stage.OPTIMIZER)
"""The stages that every update has."""
PAUSES = (Stage.EVALUATION, Stage.SAVING)
"""The stages between some of the updates."""
EARLIER_NAMES = {"checkpointing": Stage.SAVING}
"""Stages under the names that files of earlier versions have."""


def update_seconds(step_s: float, seconds: Mapping[str, float]) -> float:
    """Return the time of a step without the pauses after it.

    >>> update_seconds(2.0, {"forward": 0.5, "evaluation": 1.0, "saving": 0.25})
    0.75
    """
    return step_s - sum(seconds.get(stage, 0.0) for stage in PAUSES)
