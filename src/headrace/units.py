"""Numbers and sizes as people read them."""

from __future__ import annotations

UNKNOWN = "unknown"
NOT_YET = "not yet"
"""What stands where a number was not measured."""


def human_bytes(count: float | None) -> str:
    """Format a number of bytes in binary units.

    >>> human_bytes(1536), human_bytes(12), human_bytes(None)
    ('1.5 KiB', '12 B', 'unknown')
    """
    if count is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def plural(number: int, noun: str, many: str = "") -> str:
    """Format a number of things; `many` is the plural where it is not the noun with an s.

    >>> plural(1, "thread"), plural(2000, "file"), plural(2, "process", "processes")
    ('1 thread', '2,000 files', '2 processes')
    """
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def counted(number: int, things: str) -> str:
    """Format a number of things whose words mark their plural with (s).

    >>> counted(1, "empty file(s), left out"), counted(2000, "empty file(s), left out")
    ('1 empty file, left out', '2,000 empty files, left out')
    """
    return f"{number:,} {things.replace('(s)', '' if number == 1 else 's')}"


def human_count(count: float) -> str:
    """Format a count with three digits or fewer.

    >>> human_count(1234567)
    '1.2 M'
    """
    for unit in ("", " k", " M", " G"):
        if abs(count) < 1000:
            return f"{count:.0f}" if not unit else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.1f} T"


def human_time(seconds: float) -> str:
    """Format a duration.

    >>> human_time(0.0425), human_time(1.25), human_time(75), human_time(7500), human_time(300_000)
    ('42 ms', '1.2s', '1m 15s', '2h 5m', '3d 11h')
    """
    if seconds == float("inf"):
        return "unknown time"
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.2g} ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {seconds}s" if minutes else f"{seconds}s"


def human_rate(flops_per_second: float | None) -> str:
    """Format a rate of computation.

    >>> human_rate(1.234e11), human_rate(None)
    ('123 GFLOP/s', 'unknown')
    """
    if flops_per_second is None:
        return UNKNOWN
    giga = flops_per_second / 1e9
    return f"{giga:,.0f} GFLOP/s" if giga >= 10 else f"{giga:.2g} GFLOP/s"


def human_energy(joules: float) -> str:
    """Format an amount of energy.

    >>> human_energy(52.4), human_energy(7200), human_energy(9e6)
    ('52 J', '2.0 Wh', '2.5 kWh')
    """
    hours = joules / 3600
    return f"{joules:.0f} J" if hours < 0.1 else f"{hours:.1f} Wh" if hours < 1000 else f"{hours / 1000:.1f} kWh"


def human_percent(percent: float | None) -> str:
    """Format a percentage, with more digits where it is small.

    >>> human_percent(62.4), human_percent(0.012), human_percent(None)
    ('62%', '0.012%', 'unknown')
    """
    if percent is None:
        return UNKNOWN
    return f"{percent:.0f}%" if percent >= 10 else f"{percent:.1f}%" if percent >= 0.1 else f"{percent:.2g}%"
