"""Arguments that several commands share. Importing them imports nothing heavy, so that --help comes at once."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.run.presets import PRESETS

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG | CORPUS...] [KEY=VALUE...]", help="A config file, or text; then overrides."),
]
Preset = Annotated[str, typer.Option(help=f"One of: {', '.join(PRESETS)}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
