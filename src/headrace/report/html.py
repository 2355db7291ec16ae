"""A report as one HTML file: nothing fetched, light and dark, phone and paper.

The markup is in page.html and, for each kind of block, in blocks.html; jinja2 escapes every value that it fills in.
The only script is page.js, which shows values under the pointer, and live.js where `headrace watch` serves the page.
The page's policy names the script by its hash, so that a browser runs no other.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from typing import Any

from headrace.report.blocks import NUM_COLOURS, Bar, Block, Chart, Quote, Section
from headrace.report.charts import draw

GROUPS: dict[type, str] = {Chart: "charts", Bar: "charts", Quote: "quotes"}
"""Blocks that share a row with neighbours of their kind, and the class of that row."""


def as_html(title: str, notes: Sequence[str], sections: Sequence[Section], is_live: bool = False) -> str:
    """Return the page; one that `is_live` asks its server again and again for what is new."""
    from markupsafe import Markup  # here and below, because every command imports this module, and few write a page

    rows = {
        section.key: [(group, list(blocks)) for group, blocks in groupby(section.blocks, _group)]
        for section in sections
    }
    script = _script(is_live)
    page = _environment().get_template("page.html")
    written = time.strftime("%Y-%m-%d %H:%M")
    parts = {"title": title, "notes": notes, "sections": sections, "rows": rows, "written": written}
    return str(page.render(**parts, script=Markup(script), policy=_policy(script, is_live)))


def _group(block: Block) -> str | None:
    return GROUPS.get(type(block))


def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"draw": draw, "num_colours": NUM_COLOURS}
    return environment


def _script(is_live: bool) -> str:
    """Return the script of the page, in a function of its own."""
    names = ["page.js", "live.js"] if is_live else ["page.js"]
    texts = [resources.files(__package__).joinpath(name).read_text(encoding="utf-8") for name in names]
    return "(() => {\n" + "\n".join(texts) + "})();"


def _policy(script: str, is_live: bool) -> str:
    """Return the policy by which a browser runs this script, and fetches nothing but a live page."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"{policy}; connect-src 'self'" if is_live else policy
