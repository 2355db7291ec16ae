"""Reports: run directories become one page on what happened, where the time went, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.report.html import as_html
from headrace.report.markdown import as_markdown
from headrace.report.read import read_run
from headrace.report.sections import all_sections


def report(folders: Sequence[Path | str], markdown: bool = False, is_live: bool = False) -> str:
    """Return the report on one run, or on several overlaid, as one self-contained HTML page or as Markdown.

    A page that `is_live` is for a server: it asks again and again for what is new.

    >>> page = report(["runs/last"])   # doctest: +SKIP
    """
    runs = [read_run(Path(folder)) for folder in folders]
    if len({run.name for run in runs}) < len(runs):
        for run in runs:
            run.name = str(run.folder)
    for run in runs:
        run.prefix = f"{run.name}: " if len(runs) > 1 else ""
    title = "headrace: " + ", ".join(run.name for run in runs)
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes]
    sections = all_sections(runs)
    return as_markdown(title, notes, sections) if markdown else as_html(title, notes, sections, is_live)
