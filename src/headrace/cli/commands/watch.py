"""Command `headrace watch`: the report of a run in a browser, while the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from headrace.cli import display
from headrace.cli.arguments import LAST_RUN, Runs
from headrace.jobs.watch import watch as serve
from headrace.report.server import FIRST_PORT


def watch(
    runs: Runs = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help=f"The port to use. Default: the first free one from {FIRST_PORT}."),
    ] = None,
) -> None:
    """Show the report of a run in a browser on this machine, and keep it up to date. Ctrl-C ends it."""

    def show(url: str) -> None:
        names = ", ".join(str(run) for run in chosen)
        display.out.print(f"watching {escape(names)} at {url} (Ctrl-C ends this; the run goes on)", soft_wrap=True)

    chosen: list[Path] = runs or [LAST_RUN]
    serve(chosen, port, show)
