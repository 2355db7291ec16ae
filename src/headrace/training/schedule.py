"""The position of a run between its beginning and its limits, and the learning rate there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.errors import UsageError
from headrace.training.config import TrainingConfig

DEFAULT_MINUTES = 10.0  # the time limit of a run that sets no limit
LEAST_WARMUP_FACTOR = 0.01
"""Least learning rate of a warm-up, as a share of the peak: its first update must do something."""


@dataclass
class Position:
    """The position of a run, which is saved with every checkpoint."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    bad_steps: int = 0
    """Updates that were skipped because they were not finite."""
    best_loss: float | None = None
    best_step: int | None = None
    """Step of the checkpoint with the best loss."""
    sample_tokens: int | None = None
    """Tokens of the sample that evaluations are compared by; 0: the whole validation part; None: not evaluated yet."""
    reserve_s: float = 0.0
    """Seconds of a time limit that are set aside for the last evaluation and save."""


@dataclass(frozen=True)
class Limits:
    """The limits of a run in steps and in seconds, whichever is reached first; None is no limit."""

    steps: int | None
    seconds: float | None

    @classmethod
    def from_config(cls, training: TrainingConfig, steps_per_epoch: int) -> Limits:
        """Return the limits that a configuration sets; without any, set `max_minutes` to the default."""
        steps = [training.max_steps] if training.max_steps else []
        if training.num_epochs:
            if steps_per_epoch == 0:
                raise UsageError(
                    "the corpus is smaller than one batch: choose a smaller batch, such as training.batch_size=1"
                )
            steps.append(max(1, round(training.num_epochs * steps_per_epoch)))
        if not steps and not training.max_minutes:
            training.max_minutes = DEFAULT_MINUTES
        return cls(min(steps, default=None), 60 * training.max_minutes or None)

    def progress(self, step: int, elapsed_s: float, reserve_s: float = 0.0) -> float:
        """Return the share of the updates that is over, by the limit that will end them.

        `reserve_s`: seconds of the time limit that are set aside for what comes after the last update.

        >>> Limits(steps=None, seconds=60.0).progress(7, 27.0, reserve_s=6.0)
        0.5
        """
        by_steps = step / self.steps if self.steps else 0.0
        by_time = elapsed_s / max(self.seconds - reserve_s, 1e-9) if self.seconds else 0.0
        return min(1.0, max(by_steps, by_time))

    def is_over(self, step: int, elapsed_s: float, reserve_s: float = 0.0) -> bool:
        """Return whether a limit is reached."""
        return self.progress(step, elapsed_s, reserve_s) >= 1.0

    def key_of_end(self, config: TrainingConfig, elapsed_s: float, reserve_s: float = 0.0) -> str:
        """Return the key of the limit that ended a run."""
        if self.seconds and elapsed_s >= self.seconds - reserve_s:
            return "training.max_minutes"
        return "training.max_steps" if self.steps == config.max_steps else "training.num_epochs"


def doubled_limits(training: TrainingConfig) -> str:
    """Return twice every limit of a run, as it is typed: whichever ended it, it goes on for as long again.

    >>> doubled_limits(TrainingConfig(max_minutes=2.5, num_epochs=13))
    'training.max_minutes=5 training.num_epochs=26'
    """
    limits = {key: getattr(training, key) for key in ("max_steps", "max_minutes", "num_epochs")}
    return " ".join(f"training.{key}={str(2 * value).removesuffix('.0')}" for key, value in limits.items() if value)


def learning_rate_factor(config: TrainingConfig, progress: float) -> float:
    """Return the learning rate at a point of the run, as a share of the peak.

    >>> config = TrainingConfig(schedule="linear", warmup=0.1, final_learning_rate=0.0)
    >>> [round(learning_rate_factor(config, p), 2) for p in (0.0, 0.05, 0.1, 0.55, 1.0)]
    [0.01, 0.5, 1.0, 0.5, 0.0]
    """
    if progress < config.warmup:
        return max(progress / config.warmup, LEAST_WARMUP_FACTOR)
    start = config.warmup if config.schedule != "wsd" else max(config.warmup, 1 - config.decay)
    if progress <= start:
        return 1.0
    through = min(1.0, (progress - start) / (1 - start))
    falling = 0.5 * (1 + math.cos(math.pi * through)) if config.schedule == "cosine" else 1 - through
    return config.final_learning_rate + (1 - config.final_learning_rate) * falling
