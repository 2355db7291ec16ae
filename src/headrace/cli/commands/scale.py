"""Command `headrace scale`: the measured speedup of more cores, by threads and by processes."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from headrace.cli import display
from headrace.cli.arguments import Arguments, AsJson, ConfigFile, Preset
from headrace.cli.layers import gather
from headrace.instruments.scaling import Way, describe_disturbance
from headrace.jobs.scale import scale as measure
from headrace.machine.contention import is_disturbed
from headrace.run.remembered_scaling import Scaling
from headrace.units import human_bytes

HEADINGS = ("", "tokens/s", "speedup", "expected", "efficiency", "memory", "cores", "waiting")
PLOT_WIDTH = 40


def scale(
    arguments: Arguments = None,
    config: ConfigFile = None,
    preset: Preset = "",
    cores: Annotated[
        int, typer.Option(min=0, show_default=False, help="The largest number of cores to try. Default: all.")
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Updates per measurement.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each combination of processes and threads.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Measure the speedup of more cores. It is measured by threads and by processes; `run.processes=auto` uses it."""
    layers = gather(arguments or [], preset, None, None, config)
    with display.spinner(f"Measuring threads and processes, {repeats} times each"):
        result = measure(layers.build(), cores, steps, repeats)
    show_scaling(result)
    if as_json:
        typer.echo(json.dumps(result.as_json()))


def show_scaling(result: Scaling) -> None:
    """Print a table, bars, and the fastest combination of processes and threads."""
    table = Table(box=None, padding=(0, 1))
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for way in result.measured:
        table.add_row(
            _name(Way(way.processes, way.threads)),
            f"{way.tokens_per_second:,.0f}",
            f"{way.speedup:.2f}",
            "" if way.expected_speedup is None else f"{way.expected_speedup:.2f}",
            f"{way.efficiency_percent:.0f}%",
            human_bytes(way.memory_bytes_per_worker),
            f"{way.cpu_cores:.1f}",
            "" if way.aggregation_percent is None else f"{way.aggregation_percent:.1f}%",
        )
    display.out.print(table)
    for failure in result.failures:
        display.out.print(f"[red]failed:[/] {escape(failure)}")
    if is_disturbed(result.taken_percent):
        display.out.print(f"[yellow]disturbed:[/] {describe_disturbance(result)}")
    best = result.best
    for way in result.measured:
        bar = "█" * round(PLOT_WIDTH * way.tokens_per_second / best.tokens_per_second)
        display.out.print(f"{_name(Way(way.processes, way.threads)):>24} [cyan]{bar}[/]")
    display.out.print(f"[bold]best:[/] {_name(Way(best.processes, best.threads))}")
    display.out.print(
        "[dim]speedup: over one core; memory: of each process; cores: processor time over wall time; waiting: share of"
        " the time spent waiting for gradients[/]"
    )
    if result.all_reduce_bytes_per_second is not None:
        rate = human_bytes(result.all_reduce_bytes_per_second)
        display.out.print(
            f"[dim]expected: computed from the update on one core and from averaging gradients at {rate}/s[/]"
        )


def _name(way: Way) -> str:
    if way.cores == 1:
        return "1 core"
    if way.threads == 1:
        return f"{way.processes} processes"
    return f"{way.threads} threads" if way.processes == 1 else f"{way.processes} processes x {way.threads} threads"
