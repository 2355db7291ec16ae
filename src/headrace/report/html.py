"""A report as one HTML file: no script, nothing fetched, light and dark, phone and paper."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import singledispatch
from html import escape
from importlib import resources

from headrace.report.blocks import Bar, Block, Chart, Paragraph, Pipeline, Quote, Section, Table, Tiles
from headrace.report.charts import draw

# Even if something of the data slipped through unescaped, a browser would neither run nor fetch it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def as_html(title: str, notes: Sequence[str], sections: Sequence[Section]) -> str:
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{section.key}">{escape(section.title)}</a>' for section in sections)
    remarks = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    body = "".join(_section(section) for section in sections)
    written = time.strftime("%Y-%m-%d %H:%M")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>{remarks}<nav>{links}</nav></header><main>{body}</main>"
        f"<footer>Written {written}. Figures were measured in the run unless they say otherwise;"
        " parameters, FLOPs and memory by part are counted.</footer>"
        "</body></html>\n"
    )


def _section(section: Section) -> str:
    """Neighbouring charts share a row."""
    parts: list[str] = []
    charts: list[str] = []
    for block in section.blocks:
        if isinstance(block, Chart):
            charts.append(render(block))
            continue
        parts += _grid(charts)
        charts = []
        parts.append(render(block))
    parts += _grid(charts)
    return f'<section id="{section.key}"><h2>{escape(section.title)}</h2>{"".join(parts)}</section>'


def _grid(charts: list[str]) -> list[str]:
    return [f'<div class="charts">{"".join(charts)}</div>'] if charts else []


@singledispatch
def render(block: Block) -> str:
    raise TypeError(block)


@render.register
def _(block: Paragraph) -> str:
    return f'<p class="{"key" if block.is_key else ""}">{escape(block.text)}</p>'


@render.register
def _(block: Tiles) -> str:
    tiles = "".join(
        f"<div class=tile><span>{escape(label)}</span><strong>{escape(value)}</strong><em>{escape(remark)}</em></div>"
        for label, value, remark in block.tiles
    )
    return f'<div class="tiles">{tiles}</div>'


@render.register
def _(block: Table) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in block.headings)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


@render.register
def _(block: Chart) -> str:
    keys = "".join(
        f'<li><i class="c{number % 8}"></i>{escape(series.name)}</li>' for number, series in enumerate(block.series)
    )
    legend = f"<ul class=legend>{keys}</ul>" if len(block.series) > 1 else ""
    drawing = draw(block) or "<p>nothing to draw yet</p>"
    return f"<figure><figcaption>{escape(block.title)}</figcaption>{drawing}{legend}</figure>"


@render.register
def _(block: Bar) -> str:
    total = sum(value for _, value, _ in block.parts) or 1.0
    shown = [(n, name, value, label) for n, (name, value, label) in enumerate(block.parts) if value > 0]
    bars = "".join(
        f'<i class="c{number % 8}" style="width:{100 * value / total:.3f}%" title="{escape(name)} {escape(label)}"></i>'
        for number, name, value, label in shown
    )
    keys = "".join(
        f'<li><i class="c{number % 8}"></i>{escape(name)} <b>{escape(label)}</b></li>'
        for number, name, _, label in shown
    )
    return (
        f"<figure><figcaption>{escape(block.title)}</figcaption><div class=bar>{bars}</div>"
        f"<ul class=legend>{keys}</ul></figure>"
    )


@render.register
def _(block: Pipeline) -> str:
    stages = []
    for stage in block.stages:
        figures = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in stage.figures)
        mark = "<em>bottleneck</em>" if stage.is_slow else ""
        kind = "stage slow" if stage.is_slow else "stage"
        stages.append(f'<li class="{kind}"><h3>{escape(stage.name)}{mark}</h3><dl>{figures}</dl></li>')
    return f'<ol class="pipeline">{"".join(stages)}</ol>'


@render.register
def _(block: Quote) -> str:
    return f"<figure class=quote><figcaption>{escape(block.label)}</figcaption><pre>{escape(block.text)}</pre></figure>"
