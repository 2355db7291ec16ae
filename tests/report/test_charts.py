"""Charts are drawn whatever the figures are."""

from __future__ import annotations

from headrace.report.blocks import Chart, Series
from headrace.report.charts import draw


def test_charts_bear_odd_values() -> None:
    assert draw(Chart("empty", "", "", [])) == ""
    assert draw(Chart("nan", "", "", [Series("a", [(1, float("nan")), (2, float("inf"))])])) == ""
    assert "nan" not in draw(Chart("one", "", "", [Series("a", [(1, 1.0), (2, float("nan"))])]))
    assert draw(Chart("flat", "", "", [Series("a", [(0, 0.0), (1, 0.0)])]))
