"""The roofline model: the FLOP/s that are attainable at a given number of FLOPs per byte of memory traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One phase of a run on the roofline."""

    name: str
    intensity: float
    """FLOPs per byte of the least memory traffic."""
    achieved_flops: float
    """Measured FLOP/s."""
    attainable_flops: float
    """FLOP/s of the lower of the two roofs at this intensity."""
    bound: str
    """The lower roof at this intensity: compute or memory."""


def attainable(intensity: float, peak_flops: float, bandwidth: float) -> float:
    """Return the attainable FLOP/s at an intensity.

    >>> attainable(2.0, 1e11, 1e10), attainable(50.0, 1e11, 1e10)
    (20000000000.0, 100000000000.0)
    """
    return min(peak_flops, intensity * bandwidth)


def roofline_points(
    flops: Mapping[str, float],
    traffic_bytes: Mapping[str, float],
    seconds: Mapping[str, float],
    peak_flops: float,
    bandwidth: float,
) -> list[Point]:
    """Return a point for each stage that has FLOPs and was timed."""
    points = []
    for stage, work in flops.items():
        if work <= 0 or seconds.get(stage, 0.0) <= 0:
            continue
        intensity = work / traffic_bytes[stage]
        roof = attainable(intensity, peak_flops, bandwidth)
        bound = "compute" if roof == peak_flops else "memory"
        points.append(Point(stage, intensity, work / seconds[stage], roof, bound))
    return points
