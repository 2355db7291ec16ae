"""Columns of figures: one unit for a whole column, named in its heading, so that rows can be compared at a glance."""

from __future__ import annotations

from collections.abc import Sequence

Units = Sequence[tuple[float, float, str]]
"""From which value on a unit is used, its size, and its name; the largest first."""

TIMES: Units = ((3 * 3600, 3600, "h"), (600, 60, "min"), (1, 1, "s"), (0, 1e-3, "ms"))
SIZES: Units = ((1 << 30, 1 << 30, "GiB"), (1 << 20, 1 << 20, "MiB"), (1 << 10, 1 << 10, "KiB"), (0, 1, "B"))
COUNTS: Units = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e3, 1e3, "k"), (0, 1, ""))


def in_one_unit(values: Sequence[float], units: Units) -> tuple[str, list[str]]:
    """Return the unit that suits the largest value, and every value in that unit.

    >>> in_one_unit([0.0312, 0.0005], TIMES)
    ('ms', ['31.2', '0.5'])
    >>> in_one_unit([5 << 20, 1 << 30], SIZES)
    ('GiB', ['0.00', '1.00'])
    """
    largest = max(map(abs, values), default=0.0)
    size, unit = next((size, unit) for least, size, unit in units if largest >= least)
    decimals = 0 if size == 1 and not unit else 1 if largest / size >= 10 else 2
    return unit, [f"{value / size:,.{decimals}f}" for value in values]
