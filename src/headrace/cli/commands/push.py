"""Command `headrace push`: a trained model and its card to the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import display
from headrace.cli.arguments import LAST_RUN, AsJson
from headrace.errors import UsageError
from headrace.jobs import push as job


def push(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or a checkpoint in one.")],
    repo: Annotated[
        str, typer.Argument(metavar="REPO", help="The repository, as OWNER/NAME; made if there is none.")
    ] = "",
    licence: Annotated[
        str, typer.Option("--license", help="The licence of the model, such as mit or apache-2.0. Never guessed.")
    ] = "",
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a trained model and its card to the Hugging Face hub, in one commit."""
    if not repo:  # what is made public is named, and never runs/last by default
        raise UsageError(f"push: name the run and the repository, such as: headrace push {LAST_RUN} OWNER/NAME")
    address = job.push(run, repo, licence, private)
    display.out.print(address, markup=False)
    if as_json:
        typer.echo(json.dumps({"run": str(run), "repo": repo, "address": address}))
