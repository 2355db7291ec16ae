"""The figures of README are those of the pages that it links to: each was measured, and none is older than theirs."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
PAGES = [ROOT / "docs" / name for name in ("promises.md", "benchmarks.md", "results.md")]


def numbers(text: str) -> list[str]:
    return [number.replace(",", "") for number in NUMBER.findall(text)]


def is_among(shown: str, measured: list[str]) -> bool:
    """Check whether a number is one of those that were measured, rounded to as many digits as are shown.

    >>> is_among("17", ["16.90"]), is_among("0.12", ["0.16"])
    (True, False)
    """
    digits = len(shown.partition(".")[2])
    return any(f"{float(number):.{digits}f}" == shown for number in measured)


def test_every_figure_of_the_speed_table_was_measured() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How fast")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| ")][2:]
    measured = [number for page in PAGES for number in numbers(page.read_text(encoding="utf-8"))]
    assert len(rows) >= 5
    for what, figures in rows:
        missing = [figure for figure in numbers(figures) if not is_among(figure, measured)]
        assert not missing, f"{what}: {missing} is on none of the pages that README links to"
