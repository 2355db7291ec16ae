"""HEADRACE_QUICK: runs of 3 small steps, so that whoever tries out the commands of a page need not wait for each."""

from __future__ import annotations

import os

QUICK = "HEADRACE_QUICK"
LIMITS = {"max_steps": 3, "batch_size": 4, "max_length": 64}
"""The most that a quick run may have of these keys of the `training` section; for max_steps, 0 stands for no limit."""


def quick_limits(training: dict[str, int]) -> dict[str, int]:
    """Return the values of these keys that a run may have: the given ones, and small ones if HEADRACE_QUICK is set."""
    if not os.environ.get(QUICK):
        return training
    return {name: min(value or LIMITS[name], LIMITS[name]) for name, value in training.items()}
