"""Scale: what more cores give, by threads and by processes; remembered for `run.processes=auto`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.distributed.cores import usable_cores
from headrace.errors import UsageError
from headrace.instruments.scaling import Way, ways_to_scale
from headrace.instruments.scaling import scale as measure
from headrace.run.config import Config
from headrace.run.remembered_scaling import Scaling, remember_scaling
from headrace.run.start.settle import settled
from headrace.units import plural


def scale(
    config: Config,
    cores: int = 0,
    num_steps: int = 2,
    num_repeats: int = 3,
    projected: Sequence[int] = (),
    on_run: Callable[[Way, int], None] = lambda way, repeat: None,
) -> Scaling:
    """Measure an update on 1 to `cores` cores (0: all that this process may use), and remember the result.

    `projected`: larger numbers of processes, whose speedup is computed from what was measured. `on_run` is told before
    each measurement how it uses cores, and how often that was measured before.
    """
    usable = len(usable_cores())
    if cores > usable:
        raise UsageError(f"--cores {cores}: this process may use {plural(usable, 'core')} at most")
    config = settled(config)
    ways = ways_to_scale(cores or usable, config.training.batch_size)
    if projected and not any(way.processes > 1 for way in ways):
        raise UsageError(
            "--project: averaging gradients has to be measured between 2 processes. That needs 2 cores, and a"
            f" training.batch_size that they can divide, which {config.training.batch_size} is not on"
            f" {plural(cores or usable, 'core')}."
        )
    result = measure(config, ways, num_steps, num_repeats, projected, on_run)
    remember_scaling(config, result)
    return result
