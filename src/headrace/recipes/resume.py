"""What a run that goes on must have in common with the one that was saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.errors import CheckpointError
from headrace.machine.group import Group
from headrace.recipes.config import Config
from headrace.training.step import Execution


def num_processes_of(state: dict[str, Any]) -> int:
    """How many processes saved a checkpoint; those before there could be several do not say."""
    return int(state.get("processes", 1))


def resumed_execution(state: dict[str, Any], config: Config, group: Group) -> Execution:
    """As it was; another number of processes has other rows and cores for each."""
    saved, training = Execution(**state["execution"]), config.training
    if num_processes_of(state) == group.world_size:
        return saved
    is_given = training.threads not in (0, saved.threads)
    return replace(
        saved,
        micro_batch_size=min(saved.micro_batch_size, training.batch_size // group.world_size),
        threads=training.threads if is_given else group.num_cores,
    )


def check_resumable(config: Config, state: dict[str, Any]) -> None:
    """A changed model is refused by name; the tokenizer and the data are checked by the loader's state."""
    saved = state["config"]
    before, now = saved["data"]["tokenizer"], config.data.tokenizer
    if before != now:
        raise CheckpointError(f"data.tokenizer was {before!r} in the run and is {now!r} now: other tokens.")
    for key, value in saved["model"].items():
        mine = getattr(config.model, key)
        if mine != value:
            raise CheckpointError(f"model.{key} was {value!r} in the run and is {mine!r} now: not the same model.")
    for key in ("optimizer", "batch_size", "max_length", "seed"):
        before, now = saved["training"][key], getattr(config.training, key)
        if before != now:
            raise CheckpointError(f"training.{key} was {before!r} in the run and is {now!r} now.")
