"""Command `headrace report`: a page about one run, or about several overlaid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from headrace.cli import display
from headrace.cli.arguments import AsJson, Runs, newest_run
from headrace.jobs.report import write_report


def report(
    runs: Runs = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Write Markdown instead of HTML.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: report.html (or report.md) in the first run directory."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a page about a run: how good it got, where time and memory went, and what would make it faster."""
    runs = runs or [newest_run()]
    path = write_report(runs, markdown, out)
    display.out.print(f"{escape(str(path))}")
    if as_json:
        typer.echo(json.dumps({"report": str(path), "runs": [str(run) for run in runs]}))
