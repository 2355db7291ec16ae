"""Command `headrace tune`: measurements of what would make a run faster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from headrace.cli import display
from headrace.cli.arguments import Arguments, AsJson, ConfigFile, Preset
from headrace.cli.layers import gather
from headrace.errors import UsageError
from headrace.instruments.ladder import Finding, Tuning
from headrace.jobs.tune import DEFAULT_MINUTES, check_may_write, write_tuned, write_tuning
from headrace.jobs.tune import tune as run_trials
from headrace.run.config import Layers
from headrace.run.config_files import parse_override
from headrace.run.directory import read_run_config
from headrace.units import human_bytes, human_time

DEFAULT_OUT = Path("tuned.yaml")


def tune(
    arguments: Arguments = None,
    config: ConfigFile = None,
    preset: Preset = "",
    run: Annotated[
        Path | None,
        typer.Option(help="Tune the configuration of this run, plus KEY=VALUE; its report will show the gains."),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Minutes to spend on trials.")] = DEFAULT_MINUTES,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the fastest configuration that trains the same model.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help=f"With --apply: the file to write. Default: {DEFAULT_OUT}.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what would make a run faster. Changes are tried one by one, in short trials that take turns."""
    if out is not None and not apply:
        raise UsageError("--out needs --apply: without it no file is written.")
    out = out or DEFAULT_OUT
    if run is None:
        layers = gather(arguments or [], preset, None, None, config)
    else:
        layers = _of_run(run, [*(arguments or []), *map(str, config or [])], preset)
    if apply:
        check_may_write(out)
    with display.spinner("Tuning") as show:
        result = run_trials(layers.build(), minutes, show)
    show_tuning(result)
    if result.gain.percent and not apply:
        display.out.print("To write the configuration with the marked changes, add --apply.")
    if apply:
        write_tuned(out, result)
        display.out.print(f"written: {escape(str(out))}. Train it with: headrace train {escape(str(out))}")
    if run is not None:
        write_tuning(run, result)
    if as_json:
        typer.echo(json.dumps({**result.record().model_dump(), "config": str(out) if apply else None}))


def _of_run(run: Path, arguments: list[str], preset: str) -> Layers:
    """Return the configuration of a run, set to one process, since only one can be tuned."""
    if preset or any("=" not in text for text in arguments):
        raise UsageError("--run takes the configuration of the run: give only KEY=VALUE besides it")
    layers = Layers()
    layers.add({**read_run_config(run), "run": {"processes": 1}}, f"{run}/config.json")
    for text in arguments:
        key, value = parse_override(text)
        layers.add({key: value}, text)
    return layers


def show_tuning(result: Tuning) -> None:
    """Print the gain first, then what was tried, and the best batch size."""
    speed, tuned = result.tokens_per_second, result.tuned_tokens_per_second
    if result.gain.percent:
        display.say_markup(
            f"[bold]{speed:,.0f} → {tuned:,.0f} tokens/s[/] ({result.gain.percent:+.1f}% ±"
            f" {result.gain.spread_percent:.1f}) with the marked changes; peak memory {human_bytes(result.peak_bytes)}"
        )
    else:
        display.say_markup(f"[bold]{speed:,.0f} tokens/s[/]: no change that trains the same model is clearly faster")
    best = "not measured" if result.best_batch_size is None else f"{result.best_batch_size} sequences"
    display.say_markup(f"best batch size within memory: [bold]{best}[/]; measured in {human_time(result.seconds)}")
    display.out.print()
    display.out.print(_table(result), soft_wrap=False)
    display.out.print()
    display.say_markup(
        "[dim]gain: in tokens/s, each measured on top of the marked changes above it; ± is how far a second measurement"
        " may differ; memory: change of the peak[/]"
    )


def _table(result: Tuning) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", width=1)
    table.add_column("tried", no_wrap=True)
    table.add_column("gain", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for changes_result, heading in (
        (False, "trains the same model"),
        (True, "changes the model: never applied"),
    ):
        table.add_row("", f"[bold]{heading}[/]")
        for finding in result.findings:
            if finding.option.changes_result == changes_result:
                table.add_row(*_row(finding))
    return table


def _row(finding: Finding) -> list[str]:
    gain, memory, option = "", "", finding.option
    if finding.gain is not None:
        gain = f"{finding.gain.percent:+.1f}% ± {finding.gain.spread_percent:.1f}"
    if finding.memory_change_bytes is not None:
        sign = "+" if finding.memory_change_bytes >= 0 else "-"
        memory = f"{sign}{human_bytes(abs(finding.memory_change_bytes))}"
    changes = "\n".join(f"{key}={value}" for key, value in option.changes.items())
    mark = "[green]✓[/]" if finding.is_taken else ""
    return [mark, escape(changes), gain, memory, f"[dim]{escape(finding.problem or option.note)}[/]"]
