"""Arguments that several commands share. Importing them imports nothing heavy, so that --help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import display
from headrace.errors import CheckpointError
from headrace.files import resolved_here
from headrace.run.presets import PRESETS


def complete_key(incomplete: str) -> list[str]:
    """Return the overrides that begin with what was typed, for shell completion; files are completed by the shell."""
    from headrace.run.config import all_keys

    return [f"{key}=" for key in all_keys() if key.startswith(incomplete)] if incomplete else []


def complete_preset(incomplete: str) -> list[str]:
    """Return the presets that begin with what was typed, for shell completion."""
    return [name for name in PRESETS if name.startswith(incomplete)]


Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG | CORPUS | KEY=VALUE",
        help="A config file, text to train on (files, folders, globs) or a prepared cache; then overrides such as"
        " training.seed=1.",
        autocompletion=complete_key,
    ),
]
ConfigFile = Annotated[
    list[Path] | None,
    typer.Option("--config", metavar="FILE", help="A config file, as among the arguments; may be repeated."),
]
Preset = Annotated[
    str,
    typer.Option(help=f"A named configuration to start from: {', '.join(PRESETS)}.", autocompletion=complete_preset),
]
LAST_RUN = Path("runs/last")
"""The run that commands take where none is named."""
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run directory, a checkpoint in one, a folder that transformers saved, or a hub name (OWNER/NAME)."
        f" Default: {LAST_RUN}.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Runs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RUN", help=f"Run directories; several are shown in one page. Default: {LAST_RUN}."),
]


def newest_run() -> Path:
    """Return the run that runs/last leads to, for a command that was given none, and say which it is."""
    if not LAST_RUN.is_dir():
        raise CheckpointError(f"{LAST_RUN}: no such run here. Name a run, or make one with: headrace train")
    run = resolved_here(LAST_RUN)
    display.err.print(f"using {run}, the newest run", style="dim", markup=False)
    return run
