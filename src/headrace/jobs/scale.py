"""Scale: what more cores give, by threads and by processes; remembered for `run.processes=auto`."""

from __future__ import annotations

from headrace.distributed.cores import usable_cores
from headrace.errors import UsageError
from headrace.instruments.scaling import scale as measure
from headrace.instruments.scaling import ways_to_scale
from headrace.run.config import Config
from headrace.run.remembered_scaling import Scaling, remember_scaling


def scale(config: Config, cores: int = 0, num_steps: int = 2, num_repeats: int = 3) -> Scaling:
    """Measure an update on 1 to `cores` cores (0: all that this process may use), and remember the result."""
    usable = len(usable_cores())
    if cores > usable:
        raise UsageError(f"--cores {cores}: this process may use {usable} core(s) at most")
    ways = ways_to_scale(cores or usable, config.training.batch_size)
    result = measure(config, ways, num_steps, num_repeats)
    remember_scaling(config, result)
    return result
