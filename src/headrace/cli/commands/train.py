"""`headrace train`: the command and its options. What it needs is imported once it has said that it is starting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import display
from headrace.cli.arguments import Arguments, AsJson, ConfigFile, Preset


def train(
    arguments: Arguments = None,
    config: ConfigFile = None,
    preset: Preset = "",
    out: Annotated[Path | None, typer.Option(help="The run directory to write. Default: runs/ and the time.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue this run, or from this checkpoint of a run, with the next batch.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Start even if memory is predicted to run out.")] = False,
    measure_again: Annotated[
        bool,
        typer.Option(
            "--measure-again",
            help="Choose again how to compute steps, and measure again how fast this machine trains.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model. Without arguments, it learns the Python standard library on this disk for two minutes."""
    with display.loading():
        from headrace.cli.layers import gather
        from headrace.cli.session import run_training

    layers = gather(arguments or [], preset, out, resume, config)
    if force:
        layers.add({"run.force": True}, "--force")
    if measure_again:
        layers.add({"run.measure_again": True}, "--measure-again")
    code = run_training(layers.build(), is_resumed=resume is not None, as_json=as_json)
    if code:
        raise typer.Exit(code)
