"""The screen of a run while it trains: activity, progress, one plot, figures and the newest sample, in any size."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from headrace.cli.display import printable
from headrace.cli.figures import Figures
from headrace.cli.plot import CURVE_STYLE, MARK, MARK_STYLE, Point, Trail, draw_plot
from headrace.generation.prompts import BETWEEN_SAMPLES
from headrace.units import human_time

WIDE = 110
"""Columns from which on there are two columns."""
LEAST_ROWS = 10
"""Rows that the screen has even if what was printed above scrolls away."""
LOWEST_PLOT, HIGHEST_PLOT = 5, 14
MOST_SAMPLE_ROWS = 12
BETWEEN = "   "
ROOM_FOR_KEYS = 4
"""Columns left free at the end of the last line: terminals show ^C there, which must not begin a line of its own."""


class Doing:
    """A line that says what is being done, and for how long; each time it is drawn it says how long by then."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.begin("starting")

    def begin(self, doing: str) -> None:
        """Say that something begins now."""
        self._doing, self._began_s = doing, time.monotonic()

    def __rich__(self) -> Text:
        stopping = "stopping: " if self.is_stopping else ""
        passed_s = time.monotonic() - self._began_s
        passed = f" ({human_time(round(passed_s))})" if passed_s >= 1 else ""
        return Text(f"{stopping}{self._doing}{passed}", style="bold" if stopping else "")


class Screen:
    """What the live display draws again and again, from what it was last told; never more than fits."""

    def __init__(self, rows_above: int) -> None:
        """`rows_above`: rows of the terminal that hold what was printed before, and should stay in sight."""
        self.rows_above = rows_above
        self.doing = Doing()
        self.curve = Trail()
        self.validations: list[Point] = []
        self.figures: Figures | None = None
        self.sample = ""
        self.prompts: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text | Segment]:
        width = options.max_width
        height = max(LEAST_ROWS, console.height - self.rows_above - 1)
        lines = self._lines(console, width, min(height, console.height - 1))
        for number, line in enumerate(lines):
            if number:
                yield Segment.line()
            line.truncate(width, overflow="ellipsis")
            yield Text.assemble(line, end="")

    def _lines(self, console: Console, width: int, height: int) -> list[Text]:
        """Return the lines of the screen, at most `height` of them."""
        figures, doing = self.figures, self.doing.__rich__()
        if figures is None:
            return [doing]
        top = [_bar(console, figures, width), *_flow(console, figures.position(), width), doing]
        rest = max(0, height - len(top))
        if width >= WIDE:
            return [*top, *self._two_columns(console, figures, width, rest)]
        return [*top, *self._one_column(console, figures, width, rest)]

    def _one_column(self, console: Console, figures: Figures, width: int, height: int) -> list[Text]:
        below = _flow(console, figures.performance(), width)
        rest = height - len(below) - 1
        sample = self._sample_lines(console, width, rest // 2)
        plot = self._plot(figures, width, min(HIGHEST_PLOT, max(LOWEST_PLOT, rest - len(sample))))
        return [*plot, *below, *sample][:height]

    def _two_columns(self, console: Console, figures: Figures, width: int, height: int) -> list[Text]:
        half = width // 2 - len(BETWEEN)
        left = self._plot(figures, half, min(HIGHEST_PLOT + 4, max(LOWEST_PLOT, height - 1)))[:height]
        right = [Text.assemble((f"{name:<14}", "dim"), value) for name, value in figures.performance().items()]
        right = [line for text in right for line in text.wrap(console, half)]
        right += [Text(), *self._sample_lines(console, half, height - len(right) - 1)]
        rows = max(len(left), min(len(right), height))
        left += [Text()] * (rows - len(left))
        right += [Text()] * (rows - len(right))
        return [_side_by_side(one, other, half) for one, other in zip(left, right[:rows], strict=True)]

    def _plot(self, figures: Figures, width: int, height: int) -> list[Text]:
        """Return the losses as figures and as a plot."""
        losses, points = figures.losses(), self.curve.points()
        curve = Text.assemble(("━ ", CURVE_STYLE), ("loss ", "dim"), losses["loss"], (" smoothed", "dim"))
        marks = Text.assemble((f"{MARK} ", MARK_STYLE), ("validation ", "dim"), losses["validation"])
        is_one_line = curve.cell_len + len(BETWEEN) + marks.cell_len <= width
        titles = [Text.assemble(curve, BETWEEN, marks)] if is_one_line else [curve, marks]
        rows = max(LOWEST_PLOT, height + 1 - len(titles))
        return [*titles, *(draw_plot(points, self.validations, width, rows) if points else [])]

    def _sample_lines(self, console: Console, width: int, height: int) -> list[Text]:
        """Return the newest samples with their prompts in bold, as far as they fit below a heading."""
        if not self.sample or height < 2:
            return []
        lines = [Text("newest sample", style="dim")]
        samples = self.sample.split(BETWEEN_SAMPLES)
        rows = max(1, (min(height, MOST_SAMPLE_ROWS) - 1) // len(samples))
        for number, sample in enumerate(samples):
            prompt = self.prompts[number] if number < len(self.prompts) else ""
            lines += list(sample_text(sample, prompt).wrap(console, max(1, width - ROOM_FOR_KEYS)))[:rows]
        return lines[:height]


def sample_text(sample: str, prompt: str) -> Text:
    """Return a sample as text that a terminal can show, with its prompt in bold."""
    text, beginning = Text(printable(sample).rstrip()), printable(prompt)
    if beginning and text.plain.startswith(beginning):
        text.stylize("bold", 0, len(beginning))
    return text


def _bar(console: Console, figures: Figures, width: int) -> Text:
    """Return the bar of progress, its percentage and the times, as one line."""
    progress = min(figures.info.progress, 1.0)
    words = f" {100 * progress:3.0f}%  {figures.times()}"
    bar_width = max(4, width - len(words) - 1)
    bar = ProgressBar(total=1.0, completed=progress, width=bar_width)
    segments = console.render(bar, console.options.update(width=bar_width))
    line = Text.assemble(*((segment.text, segment.style or "") for segment in segments if segment.text.strip("\n")))
    return Text.assemble(line, words)


def _flow(console: Console, named: Mapping[str, str], width: int) -> list[Text]:
    """Return names and values one after the other, in as many lines as they need; none is divided unless it must."""
    lines = [Text()]
    for name, value in named.items():
        item = Text.assemble((f"{name} ", "dim"), value)
        if lines[-1].cell_len and lines[-1].cell_len + len(BETWEEN) + item.cell_len > width:
            lines.append(Text())
        lines[-1] = Text.assemble(lines[-1], BETWEEN if lines[-1].cell_len else "", item)
    return [row for line in lines for row in line.wrap(console, width)]


def _side_by_side(left: Text, right: Text, width: int) -> Text:
    """Return two lines as one, the second at a fixed place."""
    left = left.copy()
    left.truncate(width, overflow="ellipsis", pad=True)
    return Text.assemble(left, 2 * BETWEEN, right)
