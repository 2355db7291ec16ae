"""The page: every kind of block has its markup, and nothing that is filled in becomes markup."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from typing import get_args

import pytest

from headrace.report.blocks import (
    Bar,
    Block,
    Chart,
    Command,
    Paragraph,
    Pipeline,
    Quote,
    Section,
    Series,
    Station,
    Table,
    Tiles,
)
from headrace.report.html import as_html
from tests.report.run_folder import HOSTILE

POINTS = [(1.0, 2.0), (2.0, 3.0)]
BLOCKS: list[Block] = [
    Paragraph(HOSTILE, is_key=True),
    Tiles([(HOSTILE, HOSTILE, HOSTILE)]),
    Table([HOSTILE], [[HOSTILE]]),
    Chart(HOSTILE, HOSTILE, HOSTILE, [Series(HOSTILE, POINTS), Series(HOSTILE, POINTS, is_scatter=True)]),
    Bar(HOSTILE, [HOSTILE], [(1.0, [HOSTILE]), (0.0, ["nothing"])], [HOSTILE]),
    Pipeline([Station(HOSTILE, [(HOSTILE, HOSTILE)], is_slow=True)]),
    Quote(HOSTILE, HOSTILE),
    Command(HOSTILE, HOSTILE),
]


def page(*blocks: Block) -> str:
    return as_html("title", [], [Section("key", "A section", list(blocks))])


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: type(block).__name__)
def test_text_in_any_block_stays_text(block: Block) -> None:
    text = page(block)
    assert "&lt;script&gt;" in text
    assert text.count("<script") == 1, "the page has one script, its own"
    assert "<img" not in text


def test_every_kind_of_block_is_tried_here() -> None:
    assert {type(block) for block in BLOCKS} == set(get_args(Block))


def test_titles_and_notes_stay_text() -> None:
    text = as_html(HOSTILE, [HOSTILE], [Section("key", HOSTILE)])
    assert text.count("<script") == 1
    assert text.count("&lt;script&gt;") == 5


def test_neighbouring_charts_share_a_row() -> None:
    chart = Chart("one", "x", "y", [])
    assert page(chart, chart, Paragraph("between"), chart).count('<div class="charts">') == 2
    assert page(chart).count("nothing to draw yet") == 1


@pytest.mark.parametrize("is_live", [False, True])
def test_the_policy_allows_the_script_of_the_page_and_no_other(is_live: bool) -> None:
    text = as_html("title", [], [], is_live)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html.unescape(policy)
    assert ("connect-src" in policy) == ("fetch(" in script) == is_live
