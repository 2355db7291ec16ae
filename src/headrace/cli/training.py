"""Commands `headrace train`, `generate` and `config`: arguments in, jobs run, results shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from headrace.cli import display
from headrace.cli.progress import TrainingDisplay
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.distributed.group import is_joined
from headrace.distributed.launch import launch
from headrace.errors import EXIT_STOPPED, CheckpointError, UsageError
from headrace.generation.sampling import Sampling
from headrace.instruments.processes import best_processes
from headrace.jobs.generate import load_model, stream_text
from headrace.machine.signals import end_on_second_interrupt, on_stop_signals
from headrace.models.network import Network
from headrace.run.agreement import check_batch_size
from headrace.run.config import Config, Layers, all_keys
from headrace.run.config_files import is_override, parse_override, read_config_file
from headrace.run.directory import read_run_config
from headrace.run.presets import PRESETS
from headrace.run.pretraining import Pretraining
from headrace.run.resume import read_checkpoint_state, split_checkpoint
from headrace.training.restore import STATE

CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".json")

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG | CORPUS...] [KEY=VALUE...]", help="A config file, or text; then overrides."),
]
Preset = Annotated[str, typer.Option(help=f"One of: {', '.join(PRESETS)}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]


def gather(arguments: list[str], preset: str, out: Path | None, resume: Path | None, fallback: str = "demo") -> Layers:
    """Default < preset < file < key=value. `fallback`: the preset where nothing to learn from is given."""
    layers = Layers()
    files = [a for a in arguments if a.endswith(CONFIG_SUFFIXES) and "=" not in a and not a.endswith(".jsonl")]
    overrides = [a for a in arguments if is_override(a)]
    corpus = [a for a in arguments if a not in files and a not in overrides]
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
        layers.add({"run.out": str(folder.resolve()), "run.resume": wanted}, "--resume")
    elif preset or not (files or corpus or any(text.startswith("data.sources=") for text in overrides)):
        name = preset or fallback  # nothing to learn from was given: learn what is on this disk
        if name and name not in PRESETS:
            raise UsageError(f"--preset {name}: no such preset. Presets: {', '.join(PRESETS)}")
        if name:
            layers.add(PRESETS[name](), f"preset {name}")
    for file in files:
        layers.add(read_config_file(Path(file)), file)
    if corpus:
        layers.add({"data.sources": corpus}, "the command line")
    if out is not None:
        layers.add({"run.out": str(out)}, "--out")
    for text in overrides:
        key, value = parse_override(text)
        layers.add({key: value}, text)
    return layers


def train(
    arguments: Arguments = None,
    preset: Preset = "",
    out: Annotated[Path | None, typer.Option(help="The run directory. Default: runs/ and the time.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue this run, or this checkpoint of it, exactly where it was.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Start even where memory is predicted to run out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model. With nothing given, learns the Python standard library on this disk for two minutes."""
    layers = gather(arguments or [], preset, out, resume)
    if force:
        layers.add({"run.force": True}, "--force")
    config = layers.build()
    if not is_joined():
        num_processes = _num_processes(config)
        if num_processes > 1:
            if resume is None:  # a run that goes on takes smaller micro-batches where it must
                check_batch_size(config, num_processes)
            raise typer.Exit(launch(num_processes, sys.argv[1:]))
    stop = _StopRequest()
    with Pretraining(config, stop.is_set) as pretraining:
        stop.listen()  # not before: until here there is nothing to save
        if not pretraining.group.is_main:
            _follow(pretraining)
            return
        if pretraining.finished:
            display.err.print(pretraining.finished, markup=False)
        else:
            with TrainingDisplay(pretraining) as shown:
                for info in pretraining.steps():
                    shown.update(info)
        run = pretraining.run
        display.show_run(run.as_json())
        if as_json:
            typer.echo(json.dumps(run.as_json()))
        if run.was_stopped:
            display.err.print(f"stopped and saved. Go on with: headrace train --resume {run.folder}")
            raise typer.Exit(EXIT_STOPPED)


def _num_processes(config: Config) -> int:
    if config.run.processes != "auto":
        return config.run.processes
    with display.spinner("Measuring whether threads or processes are faster"):
        return best_processes(config, display.show_warning)


def _follow(pretraining: Pretraining) -> None:
    """Train silently, as one of the processes that rank 0 speaks for."""
    for _ in pretraining.steps():
        pass
    if pretraining.run.was_stopped:
        raise typer.Exit(EXIT_STOPPED)


class _StopRequest:
    """Signals ask the loop to finish its step and save; a second Ctrl-C ends the process at once."""

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
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory or a checkpoint.")],
    prompt: Annotated[
        list[str] | None, typer.Option(help="What the text begins with. Given several times, each is continued.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Only among the k likeliest; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Only among the likeliest up to this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same text.")] = 0,
    num_samples: Annotated[int, typer.Option(min=1, help="How many texts for each prompt, made together.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Write text with a trained model."""
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
    """Return the samples that begin with a prompt; a single one is shown while it is made."""
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
    """Show the resolved configuration, and where each value came from."""
    layers = gather(arguments or [], preset, None, None)
    resolved = layers.build()
    values = _values(resolved)
    for key in all_keys():
        display.out.print(f"{key} = {json.dumps(values[key])}", markup=False, end="")
        display.out.print(f"  [dim]{escape(layers.origins.get(key, 'default'))}[/]")
    if as_json:
        typer.echo(json.dumps({"config": resolved.model_dump(), "origins": layers.origins}))


def _values(resolved: Config) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, keys in resolved.model_dump().items() for key, value in keys.items()}
