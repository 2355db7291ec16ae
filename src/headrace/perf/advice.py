"""Advice on what would make a run faster, with the gain that its own breakdown predicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.perf.breakdown import NEAR_PEAK_PERCENT, Share
from headrace.stages import COMPUTING, Stage

LEAST_GAIN_PERCENT = 1.0


@dataclass(frozen=True)
class Advice:
    """One thing to try."""

    key: str
    """The setting to change."""
    title: str
    gain_percent: float
    """Upper bound of the gain in tokens/s, predicted from shares of the time."""
    changes_result: bool
    """Whether training would end in another model, and not only sooner."""
    why: str
    setting: str = ""
    """The change as it is typed, such as training.save_every=200; empty if it is not a single value."""


def advise(
    shares: list[Share],
    percent_of_peak: float | None,
    settings: Mapping[str, Any],
    steps_between: Mapping[str, int | None],
) -> list[Advice]:
    """Return what to try, the largest predicted gain first.

    `settings` is the run's training section; `steps_between` says how often it evaluated and saved.

    >>> shares = [Share("data wait", 5.0, 50.0), Share("forward", 5.0, 50.0)]
    >>> [(advice.title, advice.gain_percent) for advice in advise(shares, 70.0, {}, {})]
    [('Prepare the corpus first, or raise data.num_workers', 100.0)]
    """
    share = {item.stage: item.percent for item in shares}
    found = [*_between_steps(share, settings, steps_between), *_within_steps(share, percent_of_peak, settings)]
    worthwhile = [advice for advice in found if advice.gain_percent >= LEAST_GAIN_PERCENT]
    return sorted(worthwhile, key=lambda advice: -advice.gain_percent)


def _between_steps(
    share: Mapping[str, float], settings: Mapping[str, Any], steps_between: Mapping[str, int | None]
) -> Iterator[Advice]:
    """Yield advice on pauses that were set; those that a run chose are as short as they are useful."""
    for stage, key, title in (
        (Stage.EVALUATION, "training.evaluate_every", "Evaluate half as often"),
        (Stage.SAVING, "training.save_every", "Save half as often"),
    ):
        steps, percent = steps_between.get(stage), share.get(stage, 0.0)
        if steps is not None and settings.get(key.partition(".")[2]):
            why = f"{stage} takes {percent:.1f}% of the time, every {steps:,} steps"
            setting = f"{key}={2 * steps}"
            yield Advice(key, f"{title}: {setting}", _gain(percent / 2), False, why, setting)


def _within_steps(
    share: Mapping[str, float], percent_of_peak: float | None, settings: Mapping[str, Any]
) -> Iterator[Advice]:
    waiting, updating = share.get(Stage.DATA_WAIT, 0.0), share.get(Stage.OPTIMIZER, 0.0)
    why = f"steps wait for data {waiting:.1f}% of the time"
    yield Advice("data.num_workers", "Prepare the corpus first, or raise data.num_workers", _gain(waiting), False, why)
    if batch := settings.get("batch_size"):
        setting = f"training.batch_size={2 * batch}"
        title, why = (
            f"Half the updates for the same tokens: {setting}",
            f"the optimizer takes {updating:.1f}% of the time",
        )
        yield Advice("training.batch_size", title, _gain(updating / 2), True, why, setting)
    if settings.get("gradient_checkpointing"):
        saved = share.get(Stage.BACKWARD, 0.0) / 3  # the recomputed forward pass
        key, why = "training.gradient_checkpointing", "the blocks' forward pass is computed twice"
        yield Advice(key, f"If memory allows: {key}=false", _gain(saved), False, why)
    size, rows = settings.get("micro_batch_size", 0), settings.get("batch_size", 0)
    can_grow = 0 < size < rows and rows % (2 * size) == 0 and not settings.get("memory_budget")
    if percent_of_peak is not None and 0 < percent_of_peak < NEAR_PEAK_PERCENT and can_grow:
        computing = sum(share.get(stage, 0.0) for stage in COMPUTING)
        saved = computing * (1 - percent_of_peak / NEAR_PEAK_PERCENT)
        why = f"computing reaches {percent_of_peak:.0f}% of the measured peak; {NEAR_PEAK_PERCENT:.0f}% is usual"
        key = "training.micro_batch_size"
        yield Advice(key, f"If memory allows, larger products: {key}={2 * size}", _gain(saved), False, why)


def _gain(saved_percent: float) -> float:
    """Return the gain in tokens/s, in percent, when this share of the time is saved.

    >>> _gain(50.0)
    100.0
    """
    return 100 * saved_percent / max(100 - saved_percent, 1.0)
