"""Resuming a run: from which checkpoint, and what must not have changed since."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from headrace.distributed.group import Group
from headrace.errors import CheckpointError, UsageError
from headrace.run.config import Config
from headrace.run.directory import Kind, RunFolder
from headrace.run.records import CheckpointState, SavedModel
from headrace.training.checkpoint import Checkpoints
from headrace.training.execution import Execution
from headrace.training.restore import STATE, read_state
from headrace.training.ways.alternatives import default_micro_batch, why_not_native


def split_checkpoint(path: Path) -> tuple[Path, bool | str]:
    """Return what `--resume PATH` means: a run directory, and the value of `run.resume`.

    >>> split_checkpoint(Path("/runs/one/checkpoints/best"))
    (PosixPath('/runs/one'), 'best')
    >>> split_checkpoint(Path("/runs/one"))
    (PosixPath('/runs/one'), True)
    """
    whole = Path(os.path.abspath(path))  # not resolved: `best` is a link
    return (whole.parent.parent, whole.name) if whole.parent.name == "checkpoints" else (path, True)


def read_checkpoint_state(checkpoint: Path) -> CheckpointState:
    """Read the state of a checkpoint, once every file of it has been checked."""
    return _read_as(CheckpointState, checkpoint)


def read_saved_model(checkpoint: Path) -> SavedModel:
    """Read what generating text needs of a checkpoint's state, once every file of the checkpoint has been checked."""
    return _read_as(SavedModel, checkpoint)


def _read_as(kind: type[Kind], checkpoint: Path) -> Kind:
    try:
        return kind.model_validate(read_state(checkpoint))
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"{checkpoint / STATE}: damaged, or of another version ({where}: {first['msg']})."
        ) from None


def checkpoint_to_resume(wanted: bool | str, folder: RunFolder, checkpoints: Checkpoints, group: Group) -> Path | None:
    """Return the checkpoint to resume from, as rank 0 finds it; None to begin anew. No run is ever written over.

    A run that was killed before its first checkpoint has a configuration, and begins anew.
    """
    if not wanted:
        if folder.holds_a_run:
            raise UsageError(
                f"{folder.path}: holds a run already. Choose another --out, or continue it:"
                f" headrace train --resume {folder.path}"
            )
        return None
    name = "last" if wanted in (True, "auto") else str(wanted)
    found = checkpoints.find(name) if group.is_main else None
    name = group.from_main(found.name if found else "", "finding the checkpoint")
    if wanted is True and not name and not folder.holds_a_configuration:
        raise CheckpointError(
            f"{folder.path}: no checkpoint to resume from. To begin a run where there is none: run.resume=auto."
        )
    return folder.path / "checkpoints" / name if name else None


def resumed_execution(saved: CheckpointState, config: Config, group: Group) -> Execution:
    """Return the saved execution; with another number of processes, each has another share of the rows and cores.

    Its engine changes if another one is asked for, or the native library cannot be used any more.
    """
    training = config.training
    before = with_wanted_engine(saved.execution, config)
    if saved.processes == group.world_size:
        return before
    is_given = training.threads not in (0, before.threads)
    return replace(
        before,
        micro_batch_size=min(before.micro_batch_size, training.batch_size // group.world_size),
        threads=training.threads if is_given else group.num_cores,
    )


def with_wanted_engine(execution: Execution, config: Config) -> Execution:
    """Return an execution of an earlier session with the engine that is asked for today, if it is there today."""
    wanted = config.training.engine
    if wanted == "native" and execution.engine == "torch":
        execution = replace(execution, engine="native", micro_batch_size=config.training.batch_size)
    return _by_torch(execution, config) if wanted == "torch" else with_possible_engine(execution, config)


def with_possible_engine(execution: Execution, config: Config) -> Execution:
    """Return an execution of an earlier session, computed by torch where the native library is not there today."""
    reason = why_not_native(config.model, config.training, config.run.sharding)
    return _by_torch(execution, config) if reason else execution


def _by_torch(execution: Execution, config: Config) -> Execution:
    if execution.engine == "torch":
        return execution
    size = default_micro_batch(config.training.batch_size, config.training.sequence_length)
    return replace(execution, engine="torch", micro_batch_size=size)


def describe_engine_change(before: Execution, execution: Execution, config: Config) -> str:
    """Return what to tell whoever resumes a run with another engine than it was computed with; empty for the same."""
    if before.engine == execution.engine:
        return ""
    reason = why_not_native(config.model, config.training, config.run.sharding) if before.engine == "native" else ""
    because = f" ({reason})" if reason else ""
    return (
        f"the run was computed with training.engine={before.engine} and goes on with {execution.engine}{because}:"
        " its results differ by rounding from those of a run that was never interrupted"
    )


_REMEDY = "Resume with the value of the run, or start a new run with another --out."


def check_resumable(config: Config, saved: CheckpointState) -> None:
    """Refuse a model, tokenizer or order of batches other than the run's; the loader's state checks the text itself."""
    before, now = saved.config.data.tokenizer, config.data.tokenizer
    if before != now:
        raise CheckpointError(
            f"data.tokenizer was {before!r} in the run and is {now!r} now: the tokens differ. {_REMEDY}"
        )
    for key, value in saved.config.model.model_dump().items():
        mine = getattr(config.model, key)
        if mine != value:
            raise CheckpointError(
                f"model.{key} was {value!r} in the run and is {mine!r} now: not the same model. {_REMEDY}"
            )
    for key in ("optimizer", "batch_size", "max_length", "seed"):
        was, is_now = getattr(saved.config.training, key), getattr(config.training, key)
        if was != is_now:
            raise CheckpointError(f"training.{key} was {was!r} in the run and is {is_now!r} now. {_REMEDY}")
    was_related, is_related = saved.config.training.related_tokens, config.training.related_tokens
    if bool(was_related) != bool(is_related):
        raise CheckpointError(
            f"training.related_tokens was {was_related:g} in the run and is {is_related:g} now: the optimizer's state"
            f" differs. {_REMEDY}"
        )
