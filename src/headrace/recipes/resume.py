"""Going on with a run that was saved: from where, and what it must have in common with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from headrace.errors import CheckpointError, UsageError
from headrace.machine.group import Group
from headrace.recipes.config import Config
from headrace.recipes.folder import RunFolder, WatchedFolder
from headrace.training.checkpoint import Checkpoints
from headrace.training.step import Execution


def checkpoint_to_resume(
    wanted: bool | Literal["auto"], folder: RunFolder | WatchedFolder, checkpoints: Checkpoints, group: Group
) -> Path | None:
    """The last of the run, as rank 0 finds it; what is already there is never trained over."""
    last = checkpoints.last() if wanted and group.is_main else None
    name = group.from_main(last and last.name, "finding the checkpoint")
    if wanted is True and name is None:
        raise CheckpointError(f"{folder.path}: no checkpoint to resume from.")
    if not wanted and folder.holds_a_run:
        raise UsageError(
            f"{folder.path}: holds a run already. Choose another --out, or go on with it:"
            f" headrace train --resume {folder.path}"
        )
    return folder.path / "checkpoints" / name if name else None


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
