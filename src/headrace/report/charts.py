"""Charts as plain SVG: a few kilobytes each, sharp in print, coloured by the page's style sheet.

Places are percentages of the drawing, and only lines are stretched to its size: so type and line widths are the same in
every chart, however wide it is. The script of the page reads the values under the pointer from the lines themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup, escape

from headrace.report.blocks import Chart, Series

SPAN = 1000
"""Width and height of a chart in the units of its lines."""
FEW_POINTS = 12

Scale = Callable[[float], float]
"""From a value to its place, from 0 to 1."""


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers that span a range.

    >>> nice_ticks(0.0, 9.3)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    span = (high - low) or abs(high) or 1.0
    rough = span / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(round(number * step, 12)) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten that span a range; where that is less than two decades, 2 and 5 times them as well.

    >>> log_ticks(3.0, 4000.0), log_ticks(3.0, 40.0)
    ([1.0, 10.0, 100.0, 1000.0, 10000.0], [2.0, 5.0, 10.0, 20.0, 50.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1.0,) if high / low >= 100 else (1.0, 2.0, 5.0)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    first = max((tick for tick in ticks if tick <= low), default=ticks[0])
    last = min((tick for tick in ticks if tick >= high), default=ticks[-1])
    return [tick for tick in ticks if first <= tick <= last]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Return the numbers along an axis as short text; thousands are shortened where one of them needs it.

    >>> tick_labels([0, 0.0015, 2000]), tick_labels([5000, 15000]), tick_labels([1e5, 3e6])
    (['0', '0.0015', '2000'], ['5k', '15k'], ['100k', '3M'])
    """
    units = [(1e9, "G"), (1e6, "M"), (1e3, "k")] if max(map(abs, values), default=0) >= 1e4 else []
    fitting = [next(((size, unit) for size, unit in units if abs(value) >= size), (1, "")) for value in values]
    return [f"{value / size:.6g}{unit}" for value, (size, unit) in zip(values, fitting, strict=True)]


def draw(chart: Chart) -> Markup:
    """Draw a chart as SVG; empty if it has no point that can be drawn."""
    drawable = [_drawable(chart, series) for series in chart.series]
    points = [point for points in drawable for point in points]
    if not points:
        return Markup()
    xs, ys = zip(*points, strict=True)
    x_ticks = (log_ticks if chart.x_is_logarithmic else nice_ticks)(min(xs), max(xs))
    y_ticks = (log_ticks if chart.y_is_logarithmic else nice_ticks)(0.0 if chart.starts_at_zero else min(ys), max(ys))
    # Upwards the axis ends at a tick, sideways where the data ends.
    x = _scale(min(xs), max(xs), chart.x_is_logarithmic)
    y = _scale(y_ticks[0], y_ticks[-1], chart.y_is_logarithmic)
    axes = _axes([tick for tick in x_ticks if min(xs) <= tick <= max(xs)], y_ticks, x, y)
    label = f'<text class="label" x="50%" y="100%" dy="36" text-anchor="middle">{escape(chart.x_label)}</text>'
    pairs = list(zip(chart.series, drawable, strict=True))
    lines = "".join(_line(series, chart.colour_of(series), places, x, y) for series, places in pairs)
    stretched = f'<svg viewBox="0 0 {SPAN} {SPAN}" preserveAspectRatio="none" width="100%" height="100%">{lines}</svg>'
    dots = "".join(_dots(series, chart.colour_of(series), places, x, y) for series, places in pairs)
    named = f'role="img" aria-label="{escape(chart.title)}" data-x-label="{escape(chart.x_label)}"'
    return Markup(f'<svg class="chart" {named}>{"".join(axes)}{label}{stretched}{dots}</svg>')


def _drawable(chart: Chart, series: Series) -> list[tuple[float, float]]:
    """Return the points of a series that are finite, and above zero where an axis is logarithmic."""
    return [
        (x, y)
        for x, y in series.points
        if math.isfinite(x)
        and math.isfinite(y)
        and (x > 0 or not chart.x_is_logarithmic)
        and (y > 0 or not chart.y_is_logarithmic)
    ]


def _scale(first: float, last: float, is_logarithmic: bool) -> Scale:
    place = math.log10 if is_logarithmic else float
    low, high = place(first), place(last)
    return lambda value: (place(value) - low) / ((high - low) or 1.0)


def _axes(x_ticks: Sequence[float], y_ticks: Sequence[float], x: Scale, y: Scale) -> list[str]:
    parts = []
    for tick, label in zip(y_ticks, tick_labels(y_ticks), strict=True):
        height = f"{100 - 100 * y(tick):.2f}%"
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{height}" y2="{height}"/>')
        parts.append(f'<text class="tick" x="0" y="{height}" dx="-8" dy="4" text-anchor="end">{label}</text>')
    for tick, label in zip(x_ticks, tick_labels(x_ticks), strict=True):
        place = f'x="{100 * x(tick):.2f}%" y="100%" dy="18"'
        parts.append(f'<text class="tick" {place} text-anchor="middle">{label}</text>')
    return parts


def _line(series: Series, colour: int, points: Iterable[tuple[float, float]], x: Scale, y: Scale) -> str:
    """Draw a line, which carries its values for the script; that of scattered points is not seen."""
    points = list(points)
    path = " ".join(f"{SPAN * x(px):.1f},{SPAN - SPAN * y(py):.1f}" for px, py in points)
    look = "unseen" if series.is_scatter else series.look
    values = f'data-x="{_values(px for px, _ in points)}" data-y="{_values(py for _, py in points)}"'
    kind = f'class="line c{colour}{" " + look if look else ""}" data-name="{escape(series.name)}"'
    return f'<polyline {kind} {values} points="{path}"/>'


def _values(values: Iterable[float]) -> str:
    return " ".join(f"{value:.6g}" for value in values)


def _dots(series: Series, colour: int, points: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    """Draw scattered points, and those of a line that has only a few."""
    if not series.is_scatter and len(points) > FEW_POINTS:
        return ""
    radius = 5 if series.is_scatter else 2.5
    return "".join(
        f'<circle class="dot c{colour}" cx="{100 * x(px):.2f}%" cy="{100 - 100 * y(py):.2f}%" r="{radius}"/>'
        for px, py in points
    )
