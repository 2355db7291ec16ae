"""The cores that this process may run on, and their division among several processes.

torchrun's own `--numa-binding` (PyTorch 2.13) follows the GPU of each process, so it is of no use on CPUs.
"""

from __future__ import annotations

import os
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"
_NAMES = ("physical_package_id", "core_id")


def usable_cores() -> list[int]:
    """Return the logical processors that this process may run on, those of one core and socket adjacent."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0), key=lambda core: (*_place(core), core))


def share_of_cores(num_processes: int) -> int:
    """Return the number of threads for each of N processes on this machine.

    >>> share_of_cores(10_000)
    1
    """
    return max(1, len(usable_cores()) // num_processes)


def core_group(cores: list[int], number: int, num_groups: int) -> list[int]:
    """Return the cores of one of N groups of equal size; none if there are fewer cores than groups.

    >>> [core_group([0, 2, 1, 3], number, 2) for number in (0, 1)]
    [[0, 2], [1, 3]]
    >>> core_group([0], 1, 2)
    []
    """
    size = len(cores) // num_groups
    return cores[number * size : (number + 1) * size]


def stay_on(cores: list[int]) -> None:
    """Pin this thread, and every thread or process that it starts from now on, to these cores."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _place(core: int) -> tuple[int, int]:
    """Return the socket and the physical core of a logical processor; the system may not say."""
    try:
        package, number = (int(Path(_TOPOLOGY.format(core, name)).read_text(encoding="utf-8")) for name in _NAMES)
        return package, number
    except (OSError, ValueError):
        return 0, core
