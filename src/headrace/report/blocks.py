"""The blocks that a report is made of, whatever format it is written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Paragraph:
    text: str
    is_key: bool = False
    """Whether this is the most important sentence of its section."""


@dataclass(frozen=True)
class Tiles:
    """A few numbers at a glance: label, value, remark."""

    tiles: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]
    is_scatter: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines or points over two axes."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    is_logarithmic: bool = False
    starts_at_zero: bool = False


@dataclass(frozen=True)
class Bar:
    """Shares of a whole: name, value, and the value as people read it."""

    title: str
    parts: Sequence[tuple[str, float, str]]


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


Block = Paragraph | Tiles | Table | Chart | Bar | Pipeline | Quote


@dataclass
class Section:
    key: str
    title: str
    blocks: list[Block] = field(default_factory=list)
