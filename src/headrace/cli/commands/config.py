"""`headrace config`: shows the resolved configuration, or what keys mean."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.markup import escape

from headrace.cli import display
from headrace.cli.arguments import Arguments, AsJson, Preset
from headrace.cli.keys import describe_key, is_key
from headrace.cli.layers import gather
from headrace.jobs.config import resolve


def config(
    arguments: Arguments = None,
    preset: Preset = "",
    as_json: AsJson = False,
) -> None:
    """Show the resolved configuration. Every value comes with where it came from.

    `headrace config training.batch_size` explains that key instead: its type, its default and its meaning.
    """
    keys = [describe_key(text) for text in arguments or [] if is_key(text)]
    if keys and len(keys) == len(arguments or []):
        for one in keys:
            display.out.print(f"{one.name}: {one.type}; default {one.default}\n    {one.meaning}", markup=False)
        if as_json:
            typer.echo(json.dumps({one.name: asdict(one) for one in keys}))
        return
    layers = gather(arguments or [], preset, None, None)
    for key, (value, origin) in resolve(layers).items():
        display.out.print(f"{key} = {json.dumps(value)}", markup=False, end="")
        display.out.print(f"  [dim]{escape(origin)}[/]")
    if as_json:
        typer.echo(json.dumps({"config": layers.build().model_dump(), "origins": layers.origins}))
