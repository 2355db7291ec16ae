"""Charts are drawn whatever the figures are."""

from __future__ import annotations

import re

from headrace.report.blocks import Chart, Series
from headrace.report.charts import draw


def test_charts_bear_odd_values() -> None:
    assert draw(Chart("empty", "", "", [])) == ""
    assert draw(Chart("nan", "", "", [Series("a", [(1, float("nan")), (2, float("inf"))])])) == ""
    assert "nan" not in draw(Chart("one", "", "", [Series("a", [(1, 1.0), (2, float("nan"))])]))
    assert draw(Chart("flat", "", "", [Series("a", [(0, 0.0), (1, 0.0)])]))


def test_a_logarithmic_axis_leaves_room_for_what_is_short() -> None:
    short, long = Series("short", [(1, 3.0), (20, 2.0)]), Series("long", [(1, 3.0), (1000, 1.0)])
    ends = {}
    for is_logarithmic in (False, True):
        drawing = draw(Chart("loss", "step", "", [short, long], x_is_logarithmic=is_logarithmic))
        ends[is_logarithmic] = float(re.findall(r' points="[^"]* ([\d.]+),', drawing)[0])
    assert ends[False] < 25
    assert ends[True] > 400
    assert draw(Chart("zero", "", "", [Series("a", [(0, 1.0), (10, 2.0)])], x_is_logarithmic=True))


def test_lines_carry_their_values_for_the_pointer() -> None:
    drawing = draw(Chart("loss", "step", "", [Series("<b>", [(1, 2.5), (2, 1.25)])]))
    assert 'data-name="&lt;b&gt;" data-x="1 2" data-y="2.5 1.25"' in drawing
