"""A report as Markdown, for issues, commits and terminals; charts become a few rows of figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import singledispatch

from headrace.report.blocks import Bar, Block, Chart, Command, Paragraph, Pipeline, Quote, Section, Table, Tiles
from headrace.report.progress import thin

CHART_ROWS = 8


def as_markdown(title: str, notes: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the report as Markdown."""
    parts = [f"# {plain(title)}", *(f"> {plain(note)}" for note in notes)]
    for section in sections:
        parts.append(f"## {section.title}")
        parts += [text for text in map(render, section.blocks) if text]
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Escape what has a meaning in Markdown or HTML.

    >>> plain("a|b <b> [x](y)")
    'a\\\\|b \\\\<b\\\\> \\\\[x\\\\](y)'
    """
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [headings, ["---"] * len(headings)]
    body = [[plain(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in [[plain(h) for h in lines[0]], lines[1], *body])


@singledispatch
def render(block: Block) -> str:
    """Return a block as Markdown."""
    raise TypeError(block)


@render.register
def _(block: Paragraph) -> str:
    return f"**{plain(block.text)}**" if block.is_key else plain(block.text)


@render.register
def _(block: Tiles) -> str:
    return table(["", "", ""], block.tiles)


@render.register
def _(block: Table) -> str:
    return table(block.headings, block.rows)


@render.register
def _(block: Chart) -> str:
    rows = [
        [series.name, f"{x:,.4g}", f"{y:,.4g}"] for series in block.series for x, y in thin(series.points, CHART_ROWS)
    ]
    return table([block.title, block.x_label, block.y_label], rows)


@render.register
def _(block: Bar) -> str:
    rows = [row for _, row in block.rows]
    return f"{plain(block.title)}:\n\n{table(block.headings, [*rows, block.total] if block.total else rows)}"


@render.register
def _(block: Pipeline) -> str:
    rows = []
    for stage in block.stages:
        figures = ", ".join(f"{name} {value}" for name, value in stage.figures)
        rows.append([stage.name, figures, "bottleneck" if stage.is_slow else ""])
    return table(["stage", "figures", ""], rows)


@render.register
def _(block: Quote) -> str:
    return f"{plain(block.label)}:\n\n{_fenced(block.text, 'text')}"


@render.register
def _(block: Command) -> str:
    return f"{plain(block.purpose)}:\n\n{_fenced(block.line, 'sh')}"


def _fenced(text: str, language: str) -> str:
    """Return text as a block of code, whatever is in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
