"""The number of processes that is fastest for a configuration on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.distributed.cores import usable_cores
from headrace.errors import CheckpointError
from headrace.instruments.scaling import Way, describe_disturbance, scale, ways_for_all
from headrace.machine.contention import is_disturbed
from headrace.run.config import Config, RunConfig
from headrace.run.directory import read_run_config
from headrace.run.remembered_scaling import Scaling, remember_scaling, remembered_scaling
from headrace.run.start.settle import settled


def best_processes(config: Config, warn: Callable[[str], None] = lambda text: None) -> int:
    """Return the number of processes for `run.processes=auto`: the run's own if it is resumed, else the fastest one."""
    before = _recorded_processes(config.run) if config.run.resume else None
    if before is not None:
        return before
    config = settled(config)
    sequences = config.training.batch_size // max(
        config.training.micro_batch_size, 1
    )  # a process gets whole micro-batches
    ways = ways_for_all(len(usable_cores()), sequences)
    if len(ways) == 1:
        return ways[0].processes
    speeds = _known_speeds(remembered_scaling(config))
    if not speeds.keys() >= set(ways):
        scaling = scale(config, ways, num_steps=1, num_repeats=2)
        remember_scaling(config, scaling)
        if is_disturbed(scaling.taken_percent):
            warn(describe_disturbance(scaling))
        for failure in scaling.failures:
            warn(failure)
        speeds = _known_speeds(scaling)
    return max((way for way in ways if way in speeds), key=lambda way: speeds[way]).processes


def _recorded_processes(run: RunConfig) -> int | None:
    """Return the number of processes that a run directory says its run had; None where it does not say."""
    try:
        return int(read_run_config(Path(run.out))["run"]["processes"])
    except (CheckpointError, ValueError, KeyError, TypeError):
        return None


def _known_speeds(scaling: Scaling | None) -> dict[Way, float]:
    measured = scaling.measured if scaling else []
    return {Way(way.processes, way.threads): way.tokens_per_second for way in measured}
