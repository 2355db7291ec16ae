"""A report as one HTML file: no script, nothing fetched, light and dark, phone and paper.

The markup is in page.html and, for each kind of block, in blocks.html; jinja2 escapes every value that it fills in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

from headrace.report.blocks import Chart, Section
from headrace.report.charts import draw


def as_html(title: str, notes: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page."""
    import jinja2  # here, because every command imports this module, and few write a page

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["draw"] = draw
    # Neighbouring charts share a row.
    rows = {
        section.key: [(is_chart, list(row)) for is_chart, row in groupby(section.blocks, _is_chart)]
        for section in sections
    }
    written = time.strftime("%Y-%m-%d %H:%M")
    return environment.get_template("page.html").render(
        title=title, notes=notes, sections=sections, rows=rows, written=written
    )


def _is_chart(block: object) -> bool:
    return isinstance(block, Chart)
