"""Command `headrace watch`: the report of a run in a browser, while the run goes on."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape

from headrace.cli import display
from headrace.cli.arguments import LAST_RUN, AsJson, Runs
from headrace.jobs.watch import watch as serve
from headrace.report.server import FIRST_PORT


def watch(
    runs: Runs = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help=f"The port to use. Default: the first free one from {FIRST_PORT}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the report of a run in a browser on this machine, and keep it up to date. Ctrl-C ends it."""
    names = [str(run) for run in runs or [LAST_RUN]]

    def show(url: str) -> None:
        shown = escape(", ".join(names))
        display.out.print(f"watching {shown} at {url} (Ctrl-C ends this; the run goes on)", soft_wrap=True)
        if as_json:
            typer.echo(json.dumps({"url": url, "runs": names}))

    serve(runs or [LAST_RUN], port, show)
