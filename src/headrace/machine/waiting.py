"""How threads wait for each other: asleep, so that waiting does not keep a core busy that another program could use."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

POLICY, SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"


def wait_asleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Ask OpenMP to let threads sleep while they wait; before PyTorch is imported, or it is too late.

    By default libgomp's threads spin for milliseconds first. Alone on a machine that is as fast; beside another run,
    each waits spinning for a thread that the other's spinning has displaced (docs/design/busy-machine.md). What a
    person has set already is left alone. Processes that are started from this one do the same.

    >>> settings: dict[str, str] = {}
    >>> wait_asleep(settings); settings
    {'OMP_WAIT_POLICY': 'passive'}
    >>> own = {"GOMP_SPINCOUNT": "1000"}
    >>> wait_asleep(own); own
    {'GOMP_SPINCOUNT': '1000'}
    """
    if SPINS not in environment:
        environment.setdefault(POLICY, "passive")
