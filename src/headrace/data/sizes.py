"""Sizes as people write them."""

from __future__ import annotations

from headrace.errors import UsageError

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNITS |= {f"{unit}ib": 1 << 10 * power for power, unit in enumerate("kmgt", start=1)}
_UNITS |= {f"{unit}b": 1000**power for power, unit in enumerate("kmgt", start=1)}


def parse_bytes(name: str, text: str) -> int:
    """Read a size such as 256MiB, 850MB or 1.5G; `name` is the option that an error is about.

    >>> parse_bytes("--memory-budget", "256MiB")
    268435456
    """
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(number) :].strip().lower()
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        size = -1
    if not 0 <= size < 1 << 63:
        raise UsageError(f"{name} {text!r}: not a size; write it like 256MiB, 850MB or 2GiB")
    return size
