"""The regime of a run: how often it sees its text, and the part of the recipe that depends on it.

A text that comes round often is learned by heart; dropout and weight decay hold against that (docs/recipe.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.distributed.group import Group
from headrace.models.counts import count
from headrace.perf.loss_law import Exposure, Law
from headrace.perf.pace import flops_per_token
from headrace.perf.search_space import usual_bytes_per_token
from headrace.run.config import Config
from headrace.run.start.budget import TRAINING_SHARE, law_of
from headrace.run.start.keys import get_value, is_given, set_value
from headrace.run.start.pace import machine_pace
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import update_flops
from headrace.training.schedule import Limits


@dataclass(frozen=True)
class Regime:
    """A part of the recipe for runs whose text comes round about so often."""

    name: str
    most_pressure: float
    """The regime holds up to this `Exposure.pressure`."""
    values: dict[str, float | bool]
    """What differs from the defaults, by dotted key."""


# Which dropout and decay are best at which pressure: docs/recipe.md, "Text that comes round often".
REGIMES = (
    Regime("fresh text", 0.25, {}),
    Regime("a few epochs", 5.0, {"training.weight_decay": 0.5}),
    Regime(
        "several epochs",
        50.0,
        {"training.weight_decay": 1.0, "training.dropout": 0.2, "training.calibrate": True},
    ),
    Regime(
        "many epochs",
        float("inf"),
        {"training.weight_decay": 2.0, "training.dropout": 0.3, "training.calibrate": True},
    ),
)
REGIME_KEYS = sorted({key for regime in REGIMES for key in regime.values})
RECIPE_KEYS = ("training.num_epochs", *REGIME_KEYS)
"""Keys that a run decides once it has opened its text, by how large that is."""


def regime_of(pressure: float) -> Regime:
    """Return the regime of a run by what pushes it to learn its text by heart (`Exposure.pressure`).

    >>> [regime_of(pressure).name for pressure in (0, 4, 8, 200)]
    ['fresh text', 'a few epochs', 'several epochs', 'many epochs']
    """
    return next(regime for regime in REGIMES if pressure <= regime.most_pressure)


def recipe_for(exposure: Exposure, is_limited_by_time: bool, law: Law) -> tuple[Regime, dict[str, float | bool]]:
    """Return the regime of a run, and the values of its recipe; a run that only time limits may end before that."""
    share = law.best_share(exposure) if is_limited_by_time else 1.0  # whoever says how far it goes is obeyed
    regime = regime_of(exposure.shortened(share).pressure)
    end = {"training.num_epochs": float(f"{exposure.epochs * share:.2g}")} if share < 1 else {}
    return regime, {**regime.values, **end}


def settle_recipe(
    config: Config,
    before: Config | None,
    limits: Limits,
    corpus: Mapping[str, Any],
    group: Group,
    has_passes: Callable[[], bool] = lambda: True,
) -> list[str]:
    """Set what the regime of a run says and its configuration does not; return a notice that says which regime it is.

    `before`: the configuration of a run that is resumed, whose recipe other limits must not change. `corpus`: the facts
    of the corpus. Of a group, rank 0 decides. `has_passes`: whether a run can end after some passes over its text;
    asked only where it should, as counting them may take a while.
    """
    if before is not None:
        for key in RECIPE_KEYS:
            if not is_given(config, key):
                set_value(config, key, get_value(before, key))
        return []
    if config.model.init:  # the recipes were found with networks that begin from random weights
        return []
    found: list[Any] = [{}, ""]
    if group.is_main:
        exposure, law = _exposure(config, limits, corpus, group.world_size), law_of(config)
        regime, recipe = recipe_for(exposure, limits.steps is None, law)
        if "training.num_epochs" in recipe and not has_passes():
            regime, recipe = recipe_for(exposure, is_limited_by_time=False, law=law)
        taken = {key: value for key, value in recipe.items() if not is_given(config, key) and _is_of_use(config, key)}
        found = [taken, _notice(exposure, regime, taken)]
    values, notice = group.from_main(found, "counting epochs")
    for key, value in values.items():
        set_value(config, key, value)
    return [notice]


def _notice(exposure: Exposure, regime: Regime, taken: Mapping[str, float | bool]) -> str:
    epochs = exposure.epochs
    number = "less than 0.1" if epochs < 0.1 else f"about {epochs:.1f}" if epochs < 10 else f"about {epochs:,.0f}"
    size = exposure.block_parameters / exposure.unique_tokens
    weights = "" if exposure.pressure == 0 else f", with {size:.2g} weights for each token of the text"
    recipe = "".join(f" {key.partition('.')[2]}={_written(value)}" for key, value in taken.items())
    sentence = f"{number} epochs until the limit{weights}: the recipe for {regime.name}" + (recipe and f",{recipe}")
    why = ", after which more would hardly help" if "training.num_epochs" in taken else ""
    return sentence + why


def _is_of_use(config: Config, key: str) -> bool:
    """Return whether a part of the recipe can be followed: averages of weights are not calibrated, nor is any model
    without validation text."""
    if key != "training.calibrate":
        return True
    return not config.training.average and bool(config.data.validation_fraction or config.data.validation_sources)


def _written(value: float | bool) -> str:
    """Return a value as a user may write it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _exposure(config: Config, limits: Limits, corpus: Mapping[str, Any], num_processes: int) -> Exposure:
    """Return what a run will see of its text until its limit.

    Tokens are estimated from bytes even where they are counted already: the recipe of a run must not depend on how much
    of its text was tokenised before it began.
    """
    model = config.model
    counts = count(model, config.training.sequence_length)
    per_token = usual_bytes_per_token(corpus["tokenizer"], model.vocab_size)
    return Exposure(
        counts.num_parameters,
        counts.block_weights,
        model.vocab_size,
        expected_tokens(config, limits, num_processes),
        max(1.0, config.data.training_share * corpus["bytes"] / per_token),
        per_token,
    )


def expected_tokens(config: Config, limits: Limits, num_processes: int) -> float:
    """Return the tokens that a run should see before its first limit, by the pace of this machine."""
    model, training = config.model, config.training
    tokens = float("inf") if limits.steps is None else float(limits.steps * training.tokens_per_update)
    if limits.seconds is None:
        return tokens
    in_update = update_flops(model, training.optimizer, Execution.from_config(training).dtype)
    flops = flops_per_token(model, training.mean_window, training.tokens_per_update, in_update, training.sampled_tokens)
    seconds_per_token = machine_pace(config, num_processes).seconds_per_token(flops, model.num_layers)
    return min(tokens, TRAINING_SHARE * limits.seconds / seconds_per_token)
