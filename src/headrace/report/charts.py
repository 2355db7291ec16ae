"""Charts as plain SVG: no script, a few kilobytes each, sharp in print, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from headrace.report.blocks import Chart, Series

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 40

Scale = Callable[[float], float]


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
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
    """Return powers of ten that span a range.

    >>> log_ticks(3.0, 40.0)
    [1.0, 10.0, 100.0]
    """
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def tick_label(value: float) -> str:
    """Return a number as short text.

    >>> [tick_label(v) for v in (0, 0.0015, 2.5, 12000, 3e6)]
    ['0', '0.0015', '2.5', '12k', '3M']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):g}{unit}"
    return f"{value:.6g}"


def draw(chart: Chart) -> Markup:
    """Draw a chart as SVG; empty if it has no finite point."""
    points = [point for series in chart.series for point in series.points if all(map(math.isfinite, point))]
    if chart.is_logarithmic:
        points = [point for point in points if min(point) > 0]
    if not points:
        return Markup()
    xs, ys = zip(*points, strict=True)
    ticks = log_ticks if chart.is_logarithmic else nice_ticks
    x_ticks = ticks(min(xs), max(xs))
    y_ticks = ticks(0.0 if chart.starts_at_zero else min(ys), max(ys))
    # Upwards the axis ends at a tick, sideways where the data ends.
    x = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT, chart.is_logarithmic)
    y = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP, chart.is_logarithmic)
    inner = [*_axes([tick for tick in x_ticks if min(xs) <= tick <= max(xs)], y_ticks, x, y), *_labels(chart)]
    for number, series in enumerate(chart.series):
        inner.append(_draw_series(series, number, x, y))
    label, drawing = escape(chart.title), "".join(inner)
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{drawing}</svg>')


def _scale(first: float, last: float, start: float, stop: float, is_logarithmic: bool) -> Scale:
    place = math.log10 if is_logarithmic else float
    low, high = place(first), place(last)
    return lambda value: start + (place(value) - low) / ((high - low) or 1.0) * (stop - start)


def _axes(x_ticks: Sequence[float], y_ticks: Sequence[float], x: Scale, y: Scale) -> list[str]:
    parts = []
    for tick in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        place = f'x="{LEFT - 6}" y="{y(tick) + 4:.1f}"'
        parts.append(f'<text class="tick" {place} text-anchor="end">{tick_label(tick)}</text>')
    for tick in x_ticks:
        middle = f'x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}"'
        parts.append(f'<text class="tick" {middle} text-anchor="middle">{tick_label(tick)}</text>')
    return parts


def _labels(chart: Chart) -> list[str]:
    middle = (LEFT + WIDTH - RIGHT) / 2
    labels = [f'<text class="label" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(chart.x_label)}</text>']
    if chart.y_label:
        centre = (TOP + HEIGHT - BOTTOM) / 2
        turned = f'transform="translate(12 {centre}) rotate(-90)" text-anchor="middle"'
        labels.append(f'<text class="label" {turned}>{escape(chart.y_label)}</text>')
    return labels


def _draw_series(series: Series, number: int, x: Scale, y: Scale) -> str:
    finite = [point for point in series.points if all(map(math.isfinite, point))]
    places = [(f"{x(px):.1f}", f"{y(py):.1f}", px, py) for px, py in finite]
    dots = ""
    if series.is_scatter or len(places) <= 12:
        dots = "".join(
            f'<circle class="dot c{number % 8}" cx="{cx}" cy="{cy}" r="{5 if series.is_scatter else 2.5}">'
            f"<title>{escape(series.name)}: {px:,.6g}, {py:,.6g}</title></circle>"
            for cx, cy, px, py in places
        )
    if series.is_scatter:
        return dots
    path = " ".join(f"{cx},{cy}" for cx, cy, _, _ in places)
    return f'<polyline class="line c{number % 8}" points="{path}"><title>{escape(series.name)}</title></polyline>{dots}'
