"""Results as one SVG: for each corpus and budget a panel, in it a row for each variant with a dot for each seed.

The charts of reports have numbers on both axes and take their colours from the page; only their ticks are used here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from headrace.report.charts import nice_ticks, tick_labels
from lab.spread import Row

WIDTH, LEFT, RIGHT, ROW, HEADING, AXIS, MARGIN = 900, 300, 90, 24, 34, 30, 10
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222 } .title { font-weight: 600 } .small { font-size: 11px; fill: #666 }
.grid { stroke: #ddd } .base { stroke: #888; stroke-dasharray: 4 3 } .bar { stroke-width: 2 } .back { fill: #fff }
.dot { fill-opacity: .45 } .better { fill: #15803d; stroke: #15803d } .worse { fill: #b91c1c; stroke: #b91c1c }
.unclear { fill: #6b7280; stroke: #6b7280 } .baseline { fill: #1d4ed8; stroke: #1d4ed8 } .mark { stroke: none }
@media (prefers-color-scheme: dark) { text { fill: #eee } .small { fill: #aaa } .grid { stroke: #444 }
.back { fill: #111 } }
""".replace("\n", " ").strip()


def draw(rows: Sequence[Row]) -> str:
    """Draw all rows as one SVG file that needs no style sheet; the best variant of a panel is at its top."""
    parts: list[str] = []
    height = MARGIN
    for corpus, budget in dict.fromkeys((row.corpus, row.budget) for row in rows):
        mine = sorted((r for r in rows if (r.corpus, r.budget) == (corpus, budget)), key=lambda row: row.mean)
        parts.append(f'<g transform="translate(0 {height})">{_panel(f"{corpus}, {budget}", mine)}</g>')
        height += HEADING + ROW * len(mine) + AXIS + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-label="Bits per byte of each variant"><style>{_STYLE}</style>'
        f'<rect class="back" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def _panel(title: str, rows: Sequence[Row]) -> str:
    values = [value for row in rows for value in (*row.values, *row.bar)]
    ticks = nice_ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / ((high - low) or 1.0)

    bottom = HEADING + ROW * len(rows)
    parts = [f'<text class="title" x="{MARGIN}" y="20">{escape(title)}: bits per byte</text>']
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{HEADING}" y2="{bottom}"/>')
        parts.append(f'<text class="small" x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    for row in rows:
        if row.verdict == "baseline":
            place = f'x1="{x(row.mean):.1f}" x2="{x(row.mean):.1f}"'
            parts.append(f'<line class="base" {place} y1="{HEADING}" y2="{bottom}"/>')
    parts += [_row(row, HEADING + ROW * number + ROW / 2, x) for number, row in enumerate(rows)]
    return "".join(parts)


def _row(row: Row, y: float, x: Callable[[float], float]) -> str:
    """Draw a variant: its name, a dot for each seed, its mean, and a bar of one standard deviation to each side."""
    name = row.variant if len(row.variant) <= 42 else f"{row.variant[:41]}…"
    dots = "".join(f'<circle class="dot mark" cx="{x(value):.1f}" cy="{y}" r="4"/>' for value in row.values)
    low, high = row.bar
    bar = f'<line class="bar" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y}" y2="{y}"/>'
    mean = f'<line class="bar" x1="{x(row.mean):.1f}" x2="{x(row.mean):.1f}" y1="{y - 7}" y2="{y + 7}"/>'
    words = f"{row.mean:.4f}"
    title = f"<title>{escape(row.variant)}: {words} ({row.verdict})</title>"
    return (
        f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
        f'<g class="{row.verdict}">{title}{bar}{mean}{dots}</g>'
        f'<text class="small" x="{WIDTH - RIGHT + 12}" y="{y + 4}">{words}</text>'
    )
