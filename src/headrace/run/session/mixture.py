"""The mixture of a run: its weights counted in steps, and changed from a step on when that is asked for.

A configuration says what the mixture is from `data.mixture_from` on (if that is 0, from the start). What it was before
stands in `data.earlier_mixtures`, which is written here and nowhere else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.data.config import DataConfig, EarlierMixture
from headrace.data.corpus.sources import Source, unique_names
from headrace.data.corpus.weights import describe_weight
from headrace.data.order.plans import Weights
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.errors import UsageError
from headrace.run.config import Config
from headrace.run.corpus import given_cache, mixture_weights, tokenizer_of_first, training_sources
from headrace.run.directory import read_config
from headrace.run.records import CheckpointState, MixtureRecord


@dataclass(frozen=True)
class RunMixture:
    """The sources of a configuration and their weights, now and before."""

    sources: list[Source]
    weights: Weights | None
    """None: all text is one corpus."""
    first_step: int
    earlier: list[EarlierMixture]

    @classmethod
    def of(cls, config: Config) -> RunMixture:
        sources, data = training_sources(config), config.data
        weights = mixture_weights(config, sources)
        return cls(sources, weights, data.mixture_from, list(data.earlier_mixtures))

    def is_as(self, other: RunMixture) -> bool:
        """Return whether another mixture has the same weights, wherever its text lies."""
        return len(self.sources) == len(other.sources) and self.weights == other.weights

    def as_record(self) -> MixtureRecord | None:
        """Return the mixture as corpus.json has it; None if all text is one corpus."""
        if self.weights is None:
            return None
        names, weights = unique_names(self.sources), list(self.weights)
        return MixtureRecord(names=names, weights=weights, first_step=self.first_step, earlier=self.earlier)

    def describe(self) -> str:
        """Return the sources and their weights in one line."""
        if self.weights is None:
            return ", ".join(source.label for source in self.sources)
        shown = zip(unique_names(self.sources), self.weights, strict=True)
        return "; ".join(f"{name} {describe_weight(weight)}" for name, weight in shown)


@dataclass(frozen=True)
class Adopted:
    """What a run must know of its mixture beside its configuration."""

    notices: list[str]
    """What to tell the user."""
    tokenizer: Tokenizer | None
    """The tokenizer to keep to: of a model, or where sources were added, as one learned from all would be another."""


def adopt_mixture(
    config: Config, folder: Path, saved: CheckpointState | None, tokenizer: Tokenizer | None = None
) -> Adopted:
    """Settle the mixture of a run that begins in a folder, or goes on there from a saved state.

    `tokenizer`: the one of the model that the run began from, if it did.

    Where the mixture was changed since that checkpoint, its best loss is forgotten: it is of another mixture.
    """
    data = config.data
    # Before the first checkpoint nothing is trained, and a mixture may be any other.
    is_begun = saved is not None or (config.run.resume and data.mixture_from and not data.earlier_mixtures)
    before = (read_config(folder) or (saved.config if saved else None)) if is_begun else None
    notices = settle_mixture(config, before, saved.position.step if saved else 0)
    if saved is None:
        return Adopted(notices, tokenizer)
    if saved.position.best_loss is not None and not is_same_mixture(config, saved.config):
        saved.position.best_loss = saved.position.best_step = None
        notices.append("evaluations are of the new mixture from here on, so that the best checkpoint is chosen anew")
    num_first = len(data.earlier_mixtures[0].weights or [1.0]) if data.earlier_mixtures else len(data.sources)
    is_grown = num_first < len(data.sources) and given_cache(config) is None
    if tokenizer is None and is_grown:
        tokenizer = tokenizer_of_first(config, num_first)
    return Adopted(notices, tokenizer)


def settle_mixture(config: Config, before: Config | None, step: int) -> list[str]:
    """Count the schedules of a configuration in steps, and adopt a change of the mixture; return notices for the user.

    `before` is the configuration that the run has had so far, None for a run that begins; `step` is where it stands.
    """
    data, now = config.data, RunMixture.of(config)
    if before is None:
        if data.mixture_from and not data.earlier_mixtures:
            raise UsageError(
                f"data.mixture_from={data.mixture_from}: changes the mixture of a run that is resumed, and this one"
                " begins. Resume it (--resume RUN), or give weights that change: data.weights='{NAME: {0: 0.9,"
                f" {data.mixture_from}: 0.2}}}}'."
            )
        _write(config, now)
        return []
    was = RunMixture.of(before)
    is_asked_again = data.mixture_from in (0, was.first_step)
    if is_asked_again and now.is_as(was):
        now = RunMixture(now.sources, now.weights, was.first_step, was.earlier)
    elif data.mixture_from == 0:
        _refuse_other_weights(now, was, step)
    else:
        now = _changed(now, was, step)
    _write(config, now)
    if now.first_step <= step and is_asked_again:
        return []
    return [f"from step {now.first_step:,} on, the mixture is {now.describe()}"]


def is_same_mixture(config: Config, other: Config) -> bool:
    """Return whether two settled configurations mean the same mixture at every step."""
    one, two = RunMixture.of(config), RunMixture.of(other)
    return one.is_as(two) and (one.first_step, one.earlier) == (two.first_step, two.earlier)


def _refuse_other_weights(now: RunMixture, was: RunMixture, step: int) -> None:
    """Refuse other weights of the same sources; other sources are refused where the text is compared."""
    if len(now.sources) == len(was.sources):
        raise UsageError(
            f"the mixture of the run is {was.describe()}, and now it is {now.describe()} (percentages are of the steps"
            " that the run began with). Resume without weights, or change them from a step on:"
            f" data.mixture_from={max(step, 1)}, or a later step."
        )


def _changed(now: RunMixture, was: RunMixture, step: int) -> RunMixture:
    """Return the mixture of a run that is changed from `now.first_step` on; refuse what cannot be changed."""
    asked = f"data.mixture_from={now.first_step}"
    past = UsageError(
        f"{asked}: the run has trained {step:,} steps already, and their mixture cannot change. Use"
        f" data.mixture_from={step} or a later step, or go on from an earlier checkpoint:"
        f" --resume RUN/checkpoints/step-{now.first_step:08} (where there is one)."
    )
    if now.first_step < step and now.first_step != was.first_step:
        raise past
    if now.is_as(was) and _keys(now.sources) == _keys(was.sources):
        raise UsageError(
            f"{asked}: the mixture of the run is this already ({was.describe()}). Give the new weights too:"
            " data.weights='{NAME: WEIGHT, …}', or other data.sources."
        )
    if was.weights is None and len(was.sources) > 1:
        raise UsageError(
            f"{asked}: the {len(was.sources)} sources of this run have no weights, so that they are one corpus, which"
            " cannot be divided. Start a new run with weights."
        )
    if now.weights is None and len(now.sources) > 1:
        raise UsageError(f"{asked}: give every source a weight: data.weights='{{NAME: WEIGHT, …}}'.")
    weights = dict(zip(_keys(now.sources), now.weights or [1.0], strict=True))
    known = _keys(was.sources)
    added = [source for source, key in zip(now.sources, _keys(now.sources), strict=True) if key not in known]
    # Steps before the change need the sources of the run in their places: those that are left out stay, with weight 0.
    today = dict(zip(_keys(now.sources), now.sources, strict=True))
    sources = [today.get(key, source) for source, key in zip(was.sources, known, strict=True)] + added
    starts = [0, *(mixture.until for mixture in was.earlier)]
    weights_then = [*(mixture.weights for mixture in was.earlier), was.weights]
    kept = [(start, then) for start, then in zip(starts, weights_then, strict=True) if start < now.first_step]
    ends = [*(start for start, _ in kept[1:]), now.first_step]
    earlier = [
        EarlierMixture(until=end, weights=None if then is None else list(then))
        for end, (_, then) in zip(ends, kept, strict=True)
    ]
    changed = RunMixture(sources, [weights.get(key, 0.0) for key in _keys(sources)], now.first_step, earlier)
    if now.first_step < step and (not changed.is_as(was) or _keys(sources) != known):  # not the same change once more
        raise past
    return changed


def _keys(sources: list[Source]) -> list[Any]:
    """Return what tells sources apart: where their text lies, and how it is read."""
    return [(tuple(os.path.abspath(path) for path in source.paths), source.reading_hash) for source in sources]


def _write(config: Config, mixture: RunMixture) -> None:
    """Write a mixture into the configuration, where it is not a plain one that stands there already."""
    data, weights = config.data, mixture.weights
    data.mixture_from, data.earlier_mixtures = mixture.first_step, mixture.earlier
    is_plain = not data.weights and not mixture.earlier and not any(isinstance(w, dict) for w in weights or ())
    if weights is None or is_plain:
        return
    if given_cache(config) is not None:
        data.weights = dict(zip(unique_names(mixture.sources), weights, strict=True))
        return
    data.weights = {}
    data.sources = [
        {**_own_fields(source, data), "weight": weight} for source, weight in zip(mixture.sources, weights, strict=True)
    ]


def _own_fields(source: Source, data: DataConfig) -> dict[str, Any]:
    """Return the fields of a source that the options of its section do not say already."""
    fields = source.model_dump(mode="json", exclude_unset=True)
    return {name: value for name, value in fields.items() if getattr(data, name, None) != value or name == "path"}
