"""Report: runs become one page, written beside the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.files import write_atomically
from headrace.report import report


def write_report(runs: Sequence[Path], markdown: bool = False, out: Path | None = None) -> Path:
    """Write the report on one run, or on several overlaid, and return its path."""
    path = out or runs[0] / ("report.md" if markdown else "report.html")
    write_atomically(path, report(runs, markdown).encode("utf-8", "replace"))
    return path
