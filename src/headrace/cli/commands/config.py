"""`headrace config`: shows the resolved configuration with the meaning of each key, or what single keys mean."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.markup import escape

from headrace.cli import display
from headrace.cli.arguments import Arguments, AsJson, ConfigFile, Preset


def config(
    arguments: Arguments = None,
    config: ConfigFile = None,
    preset: Preset = "",
    as_json: AsJson = False,
) -> None:
    """Show the resolved configuration. Every value comes with where it came from, what is used, and what it means.

    `headrace config training.batch_size` explains that key instead: its type, its default and its meaning.
    """
    with display.loading(in_plain_lines=False):
        from headrace.cli.keys import describe_key, is_meant_as_key
        from headrace.cli.layers import gather
        from headrace.jobs.config import resolve

    keys = [describe_key(text) for text in arguments or [] if is_meant_as_key(text)]
    if keys and len(keys) == len(arguments or []):
        for one in keys:
            display.out.print(f"{one.name}: {one.type}; default {one.default}\n    {one.meaning}", markup=False)
        if as_json:
            typer.echo(json.dumps({one.name: asdict(one) for one in keys}))
        return
    layers = gather(arguments or [], preset, None, None, config)
    settings = resolve(layers)
    for key, setting in settings.items():
        display.out.print(f"{key} = {json.dumps(setting.value)}", markup=False, end="")
        if setting.used != setting.value:
            used = setting.used if isinstance(setting.used, str) else json.dumps(setting.used)
            display.out.print(f" → {used}", markup=False, end="")
        display.out.print(f"  [dim]{escape(setting.origin)}\n    {escape(describe_key(key).meaning)}[/]")
    if as_json:
        used_values = {key: setting.used for key, setting in settings.items()}
        result = {"config": layers.build().model_dump(), "origins": layers.origins, "used": used_values}
        typer.echo(json.dumps(result))
