"""The blocks that a report is made of, whatever format it is written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

NUM_COLOURS = 10
"""Colours that the style sheet has for series and shares."""


@dataclass(frozen=True)
class Paragraph:
    text: str
    is_key: bool = False
    """Whether this is the most important sentence of its section."""


@dataclass(frozen=True)
class Tiles:
    """A few numbers at a glance: label, value, remark."""

    tiles: Sequence[tuple[str, str, str]]
    is_main: bool = False
    """Whether these are the numbers that a reader came for, and are drawn larger."""


@dataclass(frozen=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_prose: bool = False
    """Whether cells hold words rather than figures: they are set to the left and may be wrapped."""


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]
    is_scatter: bool = False
    colour: int | None = None
    """Number of the colour; None: the place of the series in its chart."""
    look: str = ""
    """How the line is drawn: "dashed", "faint", or as usual if empty."""


@dataclass(frozen=True)
class Chart:
    """Lines or points over two axes."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_is_logarithmic: bool = False
    y_is_logarithmic: bool = False
    starts_at_zero: bool = False
    is_wide: bool = False
    """Whether the chart takes the whole width of the page, and not half of it."""

    def colour_of(self, series: Series) -> int:
        """Return the number of the colour that a series of this chart has."""
        return (self.series.index(series) if series.colour is None else series.colour) % NUM_COLOURS


@dataclass(frozen=True)
class Bar:
    """Shares of a whole as a bar, and beneath it a table with a row of figures for each of them."""

    title: str
    headings: Sequence[str]
    rows: Sequence[tuple[float, Sequence[str]]]
    """The size of each share, and its cells; the first cell is its name."""
    total: Sequence[str] = ()
    """Cells of a last row, for the whole."""


@dataclass(frozen=True)
class Station:
    name: str
    figures: Sequence[tuple[str, str]]
    is_slow: bool = False


@dataclass(frozen=True)
class Pipeline:
    """Stages in the order in which text flows through them."""

    stages: Sequence[Station]


@dataclass(frozen=True)
class Quote:
    """Text from data or from a model, as it is."""

    label: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command line to copy, and what it does."""

    purpose: str
    line: str


Block = Paragraph | Tiles | Table | Chart | Bar | Pipeline | Quote | Command


@dataclass
class Section:
    key: str
    title: str
    blocks: list[Block] = field(default_factory=list)
