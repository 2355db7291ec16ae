"""Command `headrace export`: a trained model as a file that other programs run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import display
from headrace.cli.arguments import AsJson, Model, newest_run
from headrace.errors import UsageError
from headrace.jobs.export import export_gguf
from headrace.units import human_bytes


def export(
    run: Model = "",
    gguf: Annotated[
        bool, typer.Option("--gguf", help="Write a GGUF file, for llama.cpp and Ollama, and a Modelfile beside it.")
    ] = False,
    kind: Annotated[
        str, typer.Option("--type", help="How weights are stored: f32 (as trained), f16, bf16 or q8_0 (smaller).")
    ] = "f32",
    out: Annotated[
        Path | None,
        typer.Option(help="A folder, or a file name that ends in .gguf. Default: gguf/ in the run directory."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained model as a file that other programs run."""
    if not gguf:
        raise UsageError("export: say which file to write: --gguf for llama.cpp and Ollama.")
    run = run or str(newest_run())
    exported = export_gguf(run, kind, out)
    model, modelfile = shlex.quote(str(exported.model)), shlex.quote(str(exported.modelfile))
    display.out.print(f"{exported.model} ({human_bytes(exported.num_bytes)})", markup=False)
    display.out.print(f"next: llama-cli -m {model} -no-cnv", markup=False)
    display.out.print(f"next: ollama create {exported.name} -f {modelfile}", markup=False)
    if exported.notice:
        display.show_warning(exported.notice)
    if as_json:
        facts = {"gguf": str(exported.model), "type": kind, "bytes": exported.num_bytes}
        typer.echo(json.dumps({"run": run, **facts, "modelfile": str(exported.modelfile)}))
