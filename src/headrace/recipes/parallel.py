"""What several processes must agree on before they train together, and how they are started."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import EXIT_STOPPED, TrainingError, UsageError
from headrace.files import canonical_json, digest
from headrace.machine.contention import is_disturbed
from headrace.machine.cores import usable_cores
from headrace.machine.group import PINNED, Group
from headrace.machine.launch import Processes
from headrace.machine.signals import on_stop_signals
from headrace.recipes.config import Config, RunConfig
from headrace.recipes.scale import Way, describe_disturbance, remember, remembered_scaling, scale, ways_for_all


def check_batch_size(config: Config, num_processes: int) -> None:
    """Every process gets the same number of whole micro-batches."""
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
    """Compiled code does not call the hooks that bring the pieces of the weights together."""
    if config.run.sharding == "fsdp" and config.training.compile:
        raise UsageError("training.compile does not work with run.sharding=fsdp; leave one of them out")


def check_same_config(config: Config, group: Group) -> None:
    """The places of files may differ between machines; what is computed may not."""
    values = config.model_dump(exclude={"run": True, "data": {"sources", "validation_sources", "cache_dir"}})
    _check_same(canonical_json({**values, "sharding": config.run.sharding}), group, "the configuration")


def check_same_corpus(loader_state: dict[str, object], group: Group) -> None:
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


def best_processes(config: Config, warn: Callable[[str], None] = lambda text: None) -> int:
    """Return how many processes `run.processes=auto` means: as before if the run goes on, else as measured here."""
    before = _recorded_processes(config.run) if config.run.resume else None
    if before is not None:
        return before
    sequences = config.training.batch_size // max(config.training.micro_batch_size, 1)  # or whole micro-batches
    ways = ways_for_all(len(usable_cores()), sequences)
    if len(ways) == 1:
        return ways[0].processes
    speeds = _known_speeds(remembered_scaling(config))
    if not speeds.keys() >= set(ways):
        scaling = scale(config, ways, num_steps=1, num_repeats=2)
        remember(config, scaling)
        if is_disturbed(scaling.taken_percent):
            warn(describe_disturbance(scaling))
        speeds = _known_speeds(scaling.as_json())
    return max(ways, key=lambda way: speeds[way]).processes


def _recorded_processes(run: RunConfig) -> int | None:
    try:
        saved = json.loads((Path(run.out) / "config.json").read_text(encoding="utf-8"))
        return int(saved["run"]["processes"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _known_speeds(scaling: dict[str, Any] | None) -> dict[Way, float]:
    measured = scaling["measured"] if scaling else []
    return {Way(way["processes"], way["threads"]): way["tokens_per_second"] for way in measured}


def launch(num_processes: int, arguments: Sequence[str]) -> int:
    """Run `headrace ARGUMENTS` in several processes of this machine; return the exit code of the first that failed.

    Each is pinned to its own cores: nobody else shares them out here.
    """
    ranks = Processes([sys.executable, "-m", "headrace", *arguments], num_processes, {PINNED: "1"})
    on_stop_signals(ranks.stop)  # before they exist: a request that comes while they are started is not lost
    with ranks:
        failure = ranks.wait()
    if failure is None:
        return 0 if ranks.is_complete else EXIT_STOPPED
    rank, code = failure
    if code >= 0:
        return code
    if ranks.is_stopping and code == -signal.SIGTERM:  # it had not begun to listen to signals
        return EXIT_STOPPED
    raise TrainingError(f"rank {rank} was ended by {signal.Signals(-code).name}.")
