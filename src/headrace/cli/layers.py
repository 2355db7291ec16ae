"""The configuration that the arguments of a command make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.cli import display
from headrace.data.corpus.remote.addresses import is_remote, shown, without_secrets
from headrace.errors import CheckpointError
from headrace.files import resolved_here
from headrace.run.config import Layers
from headrace.run.config_files import is_override, parse_override, read_config_file
from headrace.run.directory import LOCK, read_run_config
from headrace.run.presets import FIRST_RUN, preset_values
from headrace.run.records import upgraded_config
from headrace.run.resume import read_checkpoint_state, split_checkpoint
from headrace.training.restore import STATE

CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".json")


def config_files(arguments: list[str]) -> list[str]:
    """Return the arguments that are configuration files."""
    named = [a for a in arguments if a.endswith(CONFIG_SUFFIXES) and "=" not in a and not is_remote(a)]
    return [a for a in named if not is_json_text(a)]


def gather(
    arguments: list[str],
    preset: str,
    out: Path | None,
    resume: Path | None,
    config: list[Path] | None = None,
    has_first_run: bool = True,
) -> Layers:
    """Return the layers of a configuration: default < preset < file < key=value.

    `config` are the files of --config, which go over those among the arguments. `has_first_run`: whether
    arguments that name no text mean two minutes of the Python standard library.
    """
    layers = Layers()
    files = config_files(arguments)
    overrides = [a for a in arguments if is_override(a)]
    corpus = [a for a in arguments if a not in files and a not in overrides]
    typed = [(text, *parse_override(text)) for text in overrides]
    files += map(str, config or [])
    if resume is not None:
        folder, wanted = split_checkpoint(resume)
        try:
            layers.add(read_run_config(folder), f"{folder}/config.json")
        except CheckpointError as problem:
            checkpoint = folder / "checkpoints" / ("last" if wanted is True else str(wanted))
            if not (checkpoint / STATE).exists():
                raise
            layers.add(read_checkpoint_state(checkpoint).config.model_dump(), f"{checkpoint}/state.json")
            display.err.print(f"{problem} Its configuration is taken from {checkpoint}.", markup=False)
        layers.add({"run.out": str(resolved_here(folder)), "run.resume": wanted}, "--resume")
    elif preset:
        layers.add(preset_values(preset), f"preset {preset}")
    elif has_first_run and not (files or corpus or any(key == "data.sources" for _, key, _ in typed)):
        layers.add(FIRST_RUN, "no text is named")
    for file in files:
        layers.add(_read_values(Path(file)), file)
    if corpus:
        layers.add({"data.sources": [shown(path) for path in corpus]}, "the command line")
    if out is not None:
        layers.add({"run.out": str(out)}, "--out")
    for text, key, value in typed:
        layers.add({key: value}, without_secrets(text))
    return layers


def _read_values(file: Path) -> dict[str, Any]:
    """Read a configuration file; that of a run means what it meant when the run began."""
    values = read_config_file(file)
    is_of_run = file.name == "config.json" and (file.parent / LOCK).exists()
    return upgraded_config(values) if is_of_run else values


def is_json_text(argument: str) -> bool:
    """Check whether a .json file is text to train on: it begins as a list, which no configuration does."""
    if not argument.endswith(".json"):
        return False
    try:
        with open(argument, "rb") as file:
            return file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    except OSError:
        return False
