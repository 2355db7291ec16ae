"""Arguments that several commands share. Importing them imports nothing heavy, so that --help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.run.presets import PRESETS

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG | CORPUS...] [KEY=VALUE...]",
        help="A config file, or text to train on (files, folders, globs); then overrides such as training.seed=1.",
    ),
]
Preset = Annotated[str, typer.Option(help=f"A named configuration to start from: {', '.join(PRESETS)}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
LAST_RUN = Path("runs/last")
"""The run that commands take where none is named."""
Runs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[RUN...]", help=f"Run directories; several are shown in one page. Default: {LAST_RUN}."),
]
