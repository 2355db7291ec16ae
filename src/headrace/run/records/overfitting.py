"""The part of a summary that says that a run learns its text by heart."""

from __future__ import annotations

from headrace.run.records.record import Figure, Record


class Overfitting(Record):
    """A validation loss that rises while the training loss falls."""

    best_step: int
    """Step with the lowest validation loss."""
    best_loss: float
    """Validation loss at that step, on the sample that all evaluations are compared by."""
    best_training_loss: float
    """Smoothed training loss at that step."""
    best_epochs: Figure = None
    """Passes over the training text until that step; null where they are not known."""
    newest_step: int
    """Step of the newest evaluation."""
    newest_loss: float
    """Validation loss at the newest evaluation, on the same sample."""
    newest_training_loss: float
    """Smoothed training loss at the newest evaluation."""
    newest_epochs: Figure = None
    """Passes over the training text until the newest evaluation."""
    evaluations: int
    """Evaluations since the lowest validation loss."""
    seconds: float
    """Training time since then."""
