"""The regime of a run: how often it sees its text, and the part of the recipe that depends on it.

Text that comes round often is learned by heart, and a stronger weight decay holds against that (docs/training.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.distributed.group import Group
from headrace.models.counts import count
from headrace.perf.loss_law import Exposure, Law
from headrace.perf.pace import flops_per_token
from headrace.perf.search_space import usual_bytes_per_token
from headrace.run.config import Config
from headrace.run.start.budget import TRAINING_SHARE, get_value, is_given, machine_pace, set_value
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import update_flops
from headrace.training.schedule import Limits


@dataclass(frozen=True)
class Regime:
    """A range of epochs, and what of the recipe is other there than by default."""

    name: str
    most_epochs: float
    values: dict[str, float]


REGIMES = (
    Regime("fresh text", 2.0, {}),
    Regime("a few epochs", 20.0, {"training.weight_decay": 0.5}),
    Regime("many epochs", float("inf"), {"training.weight_decay": 2.0}),
)


def regime_of(epochs: float) -> Regime:
    """Return the regime of a run that goes this often through its text.

    >>> [regime_of(epochs).name for epochs in (0.3, 6, 200)]
    ['fresh text', 'a few epochs', 'many epochs']
    """
    return next(regime for regime in REGIMES if epochs <= regime.most_epochs)


def settle_recipe(
    config: Config, before: Config | None, limits: Limits, corpus: Mapping[str, Any], group: Group
) -> list[str]:
    """Set what the regime of a run says and its configuration does not; return a notice that says which regime it is.

    `before`: the configuration of a run that is resumed, whose recipe other limits must not change. `corpus`: the facts
    of the corpus. Of a group, rank 0 decides.
    """
    if before is not None:
        for key in {"training.num_epochs", *(key for regime in REGIMES for key in regime.values)}:
            if not is_given(config, key):
                set_value(config, key, get_value(before, key))
        return []
    if config.model.init:  # the recipes were found with networks that begin from random weights
        return []
    exposure = _exposure(config, limits, corpus, group.num_machines) if group.is_main else None
    found = [exposure.epochs, Law().best_share(exposure)] if exposure else [0.0, 1.0]
    epochs, share = group.from_main(found, "counting epochs")
    if limits.steps is not None:
        share = 1.0  # whoever says how far it goes is obeyed
    regime = regime_of(epochs * share)
    values = dict(regime.values)
    if share < 1:
        values["training.num_epochs"] = float(f"{epochs * share:.2g}")
    taken = {key: value for key, value in values.items() if not is_given(config, key)}
    for key, value in taken.items():
        set_value(config, key, value)
    return [_notice(epochs, regime, taken)]


def _notice(epochs: float, regime: Regime, taken: Mapping[str, float]) -> str:
    number = "less than 0.1" if epochs < 0.1 else f"{epochs:.1f}" if epochs < 10 else f"{epochs:,.0f}"
    recipe = " ".join(f"{key.partition('.')[2]}={value:g}" for key, value in taken.items())
    sentence = f"{'' if epochs < 0.1 else 'about '}{number} epochs until the limit: the recipe for {regime.name}" + (
        f", {recipe}" if recipe else ""
    )
    why = ", after which it would only learn the text by heart" if "training.num_epochs" in taken else ""
    return sentence + why


def _exposure(config: Config, limits: Limits, corpus: Mapping[str, Any], num_machines: int) -> Exposure:
    """Return what a run will see of its text until its limit.

    Tokens are estimated from bytes even where they are counted already: the recipe of a run must not depend on how much
    of its text was tokenised before it began.
    """
    model, data = config.model, config.data
    counts = count(model, config.training.sequence_length)
    per_token = usual_bytes_per_token(corpus["tokenizer"], model.vocab_size)
    share = 1.0 if data.validation_sources else 1 - data.validation_fraction
    return Exposure(
        counts.num_parameters,
        counts.block_weights,
        model.vocab_size,
        expected_tokens(config, limits, num_machines),
        max(1.0, share * corpus["bytes"] / per_token),
        per_token,
    )


def expected_tokens(config: Config, limits: Limits, num_machines: int) -> float:
    """Return the tokens that a run should see before its first limit, by the pace of this machine."""
    model, training = config.model, config.training
    tokens = float("inf") if limits.steps is None else float(limits.steps * training.tokens_per_update)
    if limits.seconds is None:
        return tokens
    in_update = update_flops(model, training.optimizer, Execution.from_config(training).dtype)
    flops = flops_per_token(model, training.sequence_length, training.tokens_per_update, in_update)
    pace = machine_pace(num_machines)
    seconds_per_token = pace.per_flop * flops + pace.per_layer * model.num_layers
    return min(tokens, TRAINING_SHARE * limits.seconds / seconds_per_token)
