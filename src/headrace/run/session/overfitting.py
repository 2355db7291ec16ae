"""A run that learns its text by heart: noticed early, told once, with what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.perf.overfitting import Judged, find_rise
from headrace.run.config import Config
from headrace.run.records import Overfitting, Run
from headrace.training.loop import StepInfo
from headrace.units import human_time, plural

STILL_HIGH = 0.5
"""Share of the peak learning rate above which most of its fall is still to come."""


class OverfittingWatch:
    """Follows the evaluations of a run, and warns once when validation turns up while training goes down."""

    def __init__(self, config: Config, before: Sequence[Judged], epoch_tokens: Callable[[], float | None]) -> None:
        """`before`: the evaluations before the run was resumed; `epoch_tokens`: returns the tokens of one pass."""
        self._config, self._epoch_tokens = config, epoch_tokens
        self._evaluations = list(before)
        self._has_warned = False

    def follow(self, info: StepInfo, run: Run) -> list[str]:
        """Write into the summary whether the run overfits at its newest evaluation; return a warning the first time."""
        if info.judged is None or run.smoothed_loss is None:
            return []
        self._evaluations.append(
            Judged(
                info.step,
                info.tokens,
                info.elapsed_s,
                info.judged.loss,
                run.smoothed_loss,
                info.judged.num_tokens,
            )
        )
        run.compared_loss = info.judged.loss
        run.overfitting = found = find_overfitting(self._config, self._evaluations, self._epoch_tokens())
        if found is None or self._has_warned:
            return []
        self._has_warned = True
        is_high = info.learning_rate > STILL_HIGH * self._config.training.learning_rate and not info.is_last
        return [_warning(found, self._config, run.best_step, is_high)]


def find_overfitting(config: Config, evaluations: Sequence[Judged], epoch_tokens: float | None) -> Overfitting | None:
    """Return how a run overfits at its newest evaluation; None if it does not, or if noise could explain it.

    Evaluations of an earlier mixture of sources are of other text, and do not count.
    """
    rise = find_rise([judged for judged in evaluations if judged.step >= config.data.mixture_from])
    if rise is None:
        return None
    best, newest = rise.best, rise.newest
    return Overfitting(
        best_step=best.step,
        best_loss=best.loss,
        best_training_loss=best.training_loss,
        best_epochs=best.tokens / epoch_tokens if epoch_tokens else None,
        newest_step=newest.step,
        newest_loss=newest.loss,
        newest_training_loss=newest.training_loss,
        newest_epochs=newest.tokens / epoch_tokens if epoch_tokens else None,
        evaluations=rise.num_evaluations,
        seconds=newest.elapsed_s - best.elapsed_s,
    )


def describe(found: Overfitting) -> str:
    """Say since when validation has risen, how far, and what that means."""
    return (
        f"validation loss has risen from {found.best_loss:.3f} to {found.newest_loss:.3f} since step"
        f" {found.best_step:,} ({plural(found.newest_step - found.best_step, 'step')}, {human_time(found.seconds)},"
        f" {plural(found.evaluations, 'evaluation')}), while training loss fell from {found.best_training_loss:.3f} to"
        f" {found.newest_training_loss:.3f}: {_cause(found)}"
    )


def has_come_round(found: Overfitting) -> bool:
    """Return whether all text has been read once, as far as is known: before that, none can be known by heart."""
    return found.newest_epochs is None or found.newest_epochs >= 1


def remedies(found: Overfitting, config: Config, folder: Path) -> list[tuple[str, str]]:
    """Return what would help, each with the command that tries it as a new run beside this one."""
    beginning = f"headrace train {shlex.quote(str(folder))}/config.json"
    anew = " run.resume=false" if config.run.resume else ""
    return [
        (title, f"{beginning} {setting}{anew} --out {shlex.quote(f'{folder}-{name}')}")
        for title, setting, name in _changes(found, config)
    ]


def _changes(found: Overfitting, config: Config) -> list[tuple[str, str, str]]:
    """Return the settings that would help: what each does, the setting, and a word for the name of a run with it."""
    if not has_come_round(found):
        return []
    changes = []
    if found.best_epochs is not None:
        epochs = f"{found.best_epochs:.2g}" if found.best_epochs < 100 else f"{found.best_epochs:.0f}"
        changes.append(("Fewer epochs", f"training.num_epochs={epochs}", "shorter"))
    if not config.training.dropout:
        changes.append(("Dropout", "training.dropout=0.2", "dropout"))
    if config.model.num_layers > 1 and not config.model.init:
        changes.append(("A smaller network", f"model.num_layers={config.model.num_layers // 2}", "smaller"))
    return changes


def _cause(found: Overfitting) -> str:
    if not has_come_round(found):
        return (
            f"after {found.newest_epochs:.2g} epochs, no text has come round yet, so that the validation text must be"
            " unlike the text that is trained on now."
        )
    epochs = "" if found.newest_epochs is None else f", after {found.newest_epochs:.3g} epochs"
    return f"the model is learning the text by heart{epochs}."


def _warning(found: Overfitting, config: Config, best_step: int | None, is_rate_high: bool) -> str:
    parts = [describe(found)]
    if is_rate_high:
        parts.append("The learning rate has most of its fall to come, and validation often falls once more with it.")
    if best_step is not None:
        parts.append(f"The checkpoint of step {best_step:,} stays the best, which generate, serve and export use.")
    settings = [f"{title[0].lower()}{title[1:]} ({setting})" for title, setting, _ in _changes(found, config)]
    if settings:
        parts.append(f"What helps: more text, {', '.join(settings)}.")
    return " ".join(parts)
