"""What several processes must have in common before they train one network together, checked and settled."""

from __future__ import annotations

import torch

from headrace.distributed.group import Group
from headrace.errors import TrainingError, UsageError
from headrace.files import canonical_json, digest
from headrace.run.config import Config
from headrace.run.directory import RunFolder


def agree(config: Config, group: Group) -> None:
    """Settle number of processes, run directory and threads, the same for all; refuse processes that differ."""
    config.run.processes = group.world_size
    if group.world_size == 1:
        return
    check_same_config(config, group)
    config.run.out = group.from_main(str(RunFolder(config.run.out).path), "naming the run directory")
    if not config.training.threads:
        torch.set_num_threads(group.num_cores)


def check_batch_size(config: Config, num_processes: int) -> None:
    """Check that every process gets the same number of whole micro-batches."""
    training = config.training
    unit = num_processes * max(training.micro_batch_size, 1)
    if num_processes == 1 or training.batch_size % unit == 0:
        return
    down = training.batch_size - training.batch_size % unit
    near = f"training.batch_size={down or unit}" + (f" or {down + unit}" if down else "")
    micro = f" x training.micro_batch_size {training.micro_batch_size}" if training.micro_batch_size else ""
    raise UsageError(
        f"training.batch_size {training.batch_size} does not divide among {num_processes} processes{micro}; use {near}"
    )


def check_sharding(config: Config) -> None:
    """Refuse sharding together with compiled code, which does not call the hooks that gather the weights."""
    if config.run.sharding == "fsdp" and config.training.compile:
        raise UsageError("training.compile does not work with run.sharding=fsdp; leave one of them out")


def check_same_config(config: Config, group: Group) -> None:
    """Check that all processes compute the same; only the places of files may differ between machines."""
    values = config.model_dump(exclude={"run": True, "data": {"sources", "validation_sources", "cache_dir"}})
    _check_same(canonical_json({**values, "sharding": config.run.sharding}), group, "the configuration")


def check_same_corpus(loader_state: dict[str, object], group: Group) -> None:
    """Check that all processes read the same text in the same order."""
    _check_same(canonical_json(loader_state), group, "the corpus")


def _check_same(text: str, group: Group, what: str) -> None:
    fingerprint = float(int(digest(text)[:12], 16))  # 48 bits: exact as a float
    everyones = group.gather([fingerprint], f"comparing {what}")
    others = [str(rank) for rank, theirs in enumerate(everyones) if theirs != everyones[0]]
    if others:
        raise TrainingError(
            f"{what} of rank {', '.join(others)} is not that of rank 0. Start all processes with the same command,"
            " and give all machines the same files."
        )
