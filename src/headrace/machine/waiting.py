"""How threads wait for each other: spinning for a moment, then asleep, so that another program can have the core."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPINS = 1000
"""Turns of a waiting thread's loop before it sleeps, 50 to 90 µs: about what falling asleep and waking up costs."""


def wait_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Ask libgomp to let threads spin only briefly; before PyTorch is imported, or it is too late.

    By default they spin 300 times as long. Beside another program, each then spins for a thread which that very
    spinning keeps from a core (docs/design/busy-machine.md). What a person has set already is left alone. Processes
    that are started from this one do the same.

    >>> settings: dict[str, str] = {}
    >>> wait_briefly(settings); settings
    {'GOMP_SPINCOUNT': '1000'}
    >>> own = {"OMP_WAIT_POLICY": "active"}
    >>> wait_briefly(own); own
    {'OMP_WAIT_POLICY': 'active'}
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPINS))


def waits_briefly(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether threads of this process sleep soon after an operation, and leave the cores to others.

    >>> waits_briefly({"GOMP_SPINCOUNT": "1000"}), waits_briefly({"OMP_WAIT_POLICY": "passive"}), waits_briefly({})
    (True, True, False)
    """
    spins = environment.get("GOMP_SPINCOUNT", "")
    is_passive = environment.get("OMP_WAIT_POLICY", "").lower() == "passive"
    return is_passive or (spins.isdigit() and int(spins) <= SPINS)
