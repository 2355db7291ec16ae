"""A small plot of losses over steps in characters: Braille dots, two by four in each, and marks on top of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.text import Text

Point = tuple[float, float]

MOST_POINTS = 1024
FEW_POINTS = 20
STEEP_SHARE = 0.05
"""Share of the steps, from the first on, in which a loss may fall from above the plot: it would flatten the rest."""
LABEL_WIDTH = 7
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a Braille character by row and column of the dot."""
BRAILLE, MARK = 0x2800, "●"
CURVE_STYLE, MARK_STYLE = "cyan", "bold yellow"


class Trail:
    """The points of a growing curve: all of few, and of many an even choice from the first to the newest."""

    def __init__(self, points: Sequence[Point] = ()) -> None:
        self._kept: list[Point] = []
        self._stride = 1
        self._num_added = 0
        self._newest: Point | None = None
        for point in points:
            self.add(*point)

    def add(self, x: float, y: float) -> None:
        """Add the next point to the right."""
        self._newest = (x, y)
        if self._num_added % self._stride == 0:
            self._kept.append((x, y))
        self._num_added += 1
        if len(self._kept) > MOST_POINTS:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    def points(self) -> list[Point]:
        """Return the points from left to right; the newest is always among them."""
        kept, newest = list(self._kept), self._newest
        return kept if newest is None or newest in kept[-1:] else [*kept, newest]


def draw_plot(curve: Sequence[Point], marks: Sequence[Point], width: int, height: int) -> list[Text]:
    """Return the rows of a plot: a curve up to its newest point, single marks, and the range of both axes."""
    columns, rows = max(2, width - LABEL_WIDTH - 1), max(2, height - 1)
    first, last = curve[0][0], max(curve[-1][0], curve[0][0] + 1)
    low, high = _range(curve, marks)
    bits = _dots(curve, (first, last), (low, high), columns, rows)
    cells = [[chr(BRAILLE | cell) if cell else " " for cell in row] for row in bits]
    marked = {_cell(mark, (first, last), (low, high), columns, rows) for mark in marks if low <= mark[1] <= high}
    lines = []
    for number, row in enumerate(cells):
        label = f"{high:.2f}" if number == 0 else f"{low:.2f}" if number == rows - 1 else ""
        columns_marked = [column for line, column in marked if line == number]
        for column in columns_marked:
            row[column] = MARK
        drawn = Text("".join(row), style=CURVE_STYLE)
        for column in columns_marked:
            drawn.stylize(MARK_STYLE, column, column + 1)
        lines.append(Text.assemble((f"{label:>{LABEL_WIDTH - 1}} │", "dim"), drawn))
    begin, end = f"step {first:,.0f}", f"{last:,.0f}"
    gap = max(1, columns - len(begin) - len(end))
    return [*lines, Text(f"{'':>{LABEL_WIDTH}} {begin}{' ' * gap}{end}", style="dim")]


def _range(curve: Sequence[Point], marks: Sequence[Point]) -> Point:
    """Return the lowest and the highest value to show."""
    shown = list(curve)
    if len(shown) > FEW_POINTS:
        begin = shown[0][0] + STEEP_SHARE * (shown[-1][0] - shown[0][0])
        shown = [point for point in shown if point[0] >= begin]
    values = [y for _, y in (*shown, *marks)]
    low, high = min(values), max(values)
    return (low, high) if high - low > 1e-6 else (low - 0.5, high + 0.5)


def _dots(curve: Sequence[Point], xs: Point, ys: Point, columns: int, rows: int) -> list[list[int]]:
    """Return the Braille bits of every cell that the curve passes through."""
    cells = [[0] * columns for _ in range(rows)]
    at = np.interp(np.linspace(*xs, 2 * columns), [x for x, _ in curve], [y for _, y in curve])
    heights = np.rint((ys[1] - at) / (ys[1] - ys[0]) * (4 * rows - 1)).clip(-1, 4 * rows).astype(int)
    before = int(heights[0])
    for column, height in enumerate(heights.tolist()):
        step = 1 if height >= before else -1
        for dot in range(before + step if height != before else height, height + step, step):
            if 0 <= dot < 4 * rows:
                cells[dot // 4][column // 2] |= DOTS[dot % 4][column % 2]
        before = height
    return cells


def _cell(point: Point, xs: Point, ys: Point, columns: int, rows: int) -> tuple[int, int]:
    """Return row and column of the cell that a point lies in."""
    column = round((point[0] - xs[0]) / (xs[1] - xs[0]) * (columns - 1))
    row = round((ys[1] - point[1]) / (ys[1] - ys[0]) * (rows - 1))
    return row, min(max(column, 0), columns - 1)
