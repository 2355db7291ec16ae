"""Commands `headrace train`, `generate` and `config`."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from headrace.cli import display
from headrace.cli.arguments import Arguments, AsJson, Preset, gather
from headrace.cli.keys import describe_key, is_key
from headrace.cli.progress import TrainingDisplay
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.distributed.group import is_joined
from headrace.distributed.launch import launch
from headrace.errors import EXIT_STOPPED
from headrace.generation.sampling import Sampling
from headrace.jobs.config import resolve
from headrace.jobs.generate import load_model, stream_text
from headrace.jobs.train import processes_to_start, run_to_the_end
from headrace.machine.signals import end_on_second_interrupt, on_stop_signals
from headrace.models.network import Network
from headrace.run.pretraining import Pretraining


def train(
    arguments: Arguments = None,
    preset: Preset = "",
    out: Annotated[Path | None, typer.Option(help="The run directory to write. Default: runs/ and the time.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue this run, or from this checkpoint of a run, exactly where it was.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Start even if memory is predicted to run out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model. Without arguments, it learns the Python standard library on this disk for two minutes."""
    layers = gather(arguments or [], preset, out, resume)
    if force:
        layers.add({"run.force": True}, "--force")
    config = layers.build()
    is_measured = config.run.processes == "auto" and not is_joined()
    with display.spinner("Measuring whether threads or processes are faster") if is_measured else nullcontext():
        num_processes = processes_to_start(config, is_resumed=resume is not None, warn=display.show_warning)
    if num_processes > 1:
        raise typer.Exit(launch(num_processes, sys.argv[1:]))
    stop = _StopRequest()
    with Pretraining(config, stop.is_set) as pretraining:
        stop.listen()  # only now, since before this there is nothing to save
        is_main = pretraining.group.is_main
        if pretraining.finished and is_main:
            display.err.print(pretraining.finished, markup=False)
        is_shown = is_main and not pretraining.finished
        with TrainingDisplay(pretraining) if is_shown else nullcontext() as shown:
            run = run_to_the_end(pretraining, [shown.update] if shown else [])
    if is_main:
        display.show_run(run.as_json())
        if as_json:
            typer.echo(json.dumps(run.as_json()))
        if run.was_stopped:
            display.err.print(f"stopped and saved. Continue with: headrace train --resume {run.folder}")
    if run.was_stopped:
        raise typer.Exit(EXIT_STOPPED)


class _StopRequest:
    """A request by signal to finish the step and save; a second Ctrl-C ends the process at once."""

    def __init__(self) -> None:
        self._is_set = False

    def listen(self) -> None:
        on_stop_signals(self._set)

    def is_set(self) -> bool:
        return self._is_set

    def _set(self) -> None:
        self._is_set = True
        end_on_second_interrupt()


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or a checkpoint in one.")],
    prompt: Annotated[
        list[str] | None, typer.Option(help="The text to continue; repeat the option for several prompts.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate for each text.")] = 200,
    temperature: Annotated[
        float, typer.Option(help="Randomness of the draws; 0 always takes the likeliest token.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest tokens; 0: from all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Draw from the likeliest tokens that together reach this probability.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Seed of the draws; the same seed gives the same text.")
    ] = 0,
    num_samples: Annotated[int, typer.Option(min=1, help="Number of texts to generate for each prompt.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Generate text with a trained model."""
    sampling = Sampling(max_tokens, temperature, top_k, top_p, seed, num_samples)
    prompts = prompt or [""]
    model = load_model(run)
    texts: list[str] = []
    for number, start in enumerate(prompts):
        if number and not as_json:
            sys.stdout.write("---\n")
        texts += _continue(model, start, sampling, is_shown=not as_json)
    if as_json:
        asked = {"prompt": prompts[0]} if len(prompts) == 1 else {"prompts": prompts}
        typer.echo(json.dumps({"run": str(run), **asked, "samples": texts}))


def _continue(model: tuple[Network, Tokenizer], prompt: str, sampling: Sampling, is_shown: bool) -> list[str]:
    """Return samples that continue a prompt; a single one is printed while it is generated."""
    texts = [prompt] * sampling.num_samples
    streams = is_shown and sampling.num_samples == 1
    if streams:
        sys.stdout.write(prompt)
    for pieces in stream_text(model, prompt, sampling):
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        if streams:
            sys.stdout.write(pieces[0])
            sys.stdout.flush()
    if is_shown:
        sys.stdout.write("\n" if streams else "\n---\n".join(texts) + "\n")
    return texts


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
