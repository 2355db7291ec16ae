"""The speed of a run: one definition of each number."""

from __future__ import annotations

from collections.abc import Sequence

GRADES = ((1.0, "excellent"), (5.0, "good"), (20.0, "fair"))
POOR = "poor"


def tokens_per_second(tokens: int, seconds: float) -> float:
    """Return tokens over elapsed time, everything included.

    >>> tokens_per_second(4096, 2.0)
    2048.0
    """
    return tokens / max(seconds, 1e-9)


def percent_of_peak(flops: float, seconds: float, peak_flops: float | None) -> float | None:
    """Return the FLOP/s of training in percent of the peak measured on the same machine; None if that is unknown.

    >>> percent_of_peak(1e12, 10.0, 2e11)
    50.0
    """
    if not peak_flops:
        return None
    return 100 * flops / max(seconds, 1e-9) / peak_flops


def median(ordered: Sequence[float]) -> float:
    """Return the median of sorted values, the upper one of two; 0 if there are none.

    >>> median([1.0, 2.0, 9.0])
    2.0
    """
    return ordered[len(ordered) // 2] if ordered else 0.0


def wait_percent(wait_s: float, step_s: float) -> float:
    """Return the percentage of one step that was spent waiting for its batch: at most 100.

    Of several processes the one that waited longest counts, which may have begun before the step of this one.

    >>> wait_percent(0.01, 0.1), wait_percent(0.2, 0.1)
    (10.0, 100.0)
    """
    return min(100.0, 100 * wait_s / max(step_s, 1e-9))


def data_wait_grade(percent: float) -> str:
    """Return the grade of a data wait in percent.

    >>> [data_wait_grade(p) for p in (0.1, 3, 10, 40)]
    ['excellent', 'good', 'fair', 'poor']
    """
    return next((grade for limit, grade in GRADES if percent < limit), POOR)
