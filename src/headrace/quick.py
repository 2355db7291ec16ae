"""HEADRACE_QUICK: short runs, so that whoever tries out the commands of a page need not wait for each."""

from __future__ import annotations

import os

QUICK = "HEADRACE_QUICK"
MOST_STEPS = 3


def quick_steps(max_steps: int) -> int:
    """Return the limit on updates: the given one (0: none), and at most 3 where HEADRACE_QUICK is set.

    >>> quick_steps(1000) if os.environ.get(QUICK) else 3
    3
    """
    if not os.environ.get(QUICK):
        return max_steps
    return min(max_steps, MOST_STEPS) if max_steps else MOST_STEPS
