"""Command `headrace scale`: the measured speedup of more cores, by threads and by processes."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from headrace.cli import display
from headrace.cli.arguments import Arguments, AsJson, ConfigFile, Preset
from headrace.cli.layers import gather
from headrace.errors import UsageError
from headrace.instruments.scaling import Way, describe_disturbance
from headrace.jobs.scale import scale as measure
from headrace.machine.contention import is_disturbed
from headrace.run.remembered_scaling import Scaling, way_name
from headrace.units import human_bytes, plural

HEADINGS = ("", "tokens/s", "speedup", "expected", "of ideal", "memory", "busy", "waiting")
PLOT_WIDTH, NAME_WIDTH = 40, 20
MOST_PROCESSES = 100_000
EXPECTATION_MET = 0.8
"""Share of the expected speedup below which projections are said to be doubtful."""


def scale(
    arguments: Arguments = None,
    config: ConfigFile = None,
    preset: Preset = "",
    cores: Annotated[
        int, typer.Option(min=0, show_default=False, help="The largest number of cores to try. Default: all.")
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Updates per measurement.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each combination of processes and threads.")] = 3,
    project: Annotated[
        str, typer.Option(metavar="N,N...", help="Numbers of processes to compute the speedup of, such as 4,8,64.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Measure the speedup of more cores. It is measured by threads and by processes; `run.processes=auto` uses it."""
    projected = _numbers(project)
    layers = gather(arguments or [], preset, None, None, config)
    with display.spinner("Measuring") as show:

        def tell(way: Way, repeat: int) -> None:
            show(f"{way_name(way.processes, way.threads)}, round {repeat + 1} of {repeats}")

        result = measure(layers.build(), cores, steps, repeats, projected, tell)
    show_scaling(result)
    if as_json:
        typer.echo(json.dumps(result.as_json()))


def _numbers(text: str) -> list[int]:
    """Read numbers of processes, separated by commas."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:9]) <= MOST_PROCESSES for part in parts):
        raise UsageError(f"--project {text[:80]}: write numbers of processes with commas between them, such as 4,8,64")
    return sorted({int(part) for part in parts})


def show_scaling(result: Scaling) -> None:
    """Print the fastest combination of processes and threads first, then all of them as a table and as bars."""
    best = result.best
    display.say_markup(
        f"[bold]best: {best.name}[/], {best.tokens_per_second:,.0f} tokens/s, {best.speedup:.2f} times one core"
    )
    if is_disturbed(result.taken_percent):
        display.say_markup(f"[yellow]disturbed:[/] {describe_disturbance(result)}")
    for failure in result.failures:
        display.say(f"failed: {failure}", display.out)
    display.out.print()
    display.out.print(_table(result), soft_wrap=False)
    display.out.print()
    _show_bars(result)
    display.out.print()
    _show_legend(result)


def _table(result: Scaling) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for way in result.measured:
        table.add_row(
            way.name,
            f"{way.tokens_per_second:,.0f}",
            f"{way.speedup:.2f}",
            "" if way.expected_speedup is None else f"{way.expected_speedup:.2f}",
            f"{way.efficiency_percent:.0f}%",
            human_bytes(way.memory_bytes_per_worker),
            f"{way.cpu_cores:.1f}",
            "" if way.aggregation_percent is None else f"{way.aggregation_percent:.1f}%",
        )
    for row in result.projected:
        figures = (f"{row.tokens_per_second:,.0f}", f"{row.speedup:.2f}", "", f"{row.efficiency_percent:.0f}%")
        table.add_row(_projected_name(row.processes), *figures, "projected", style="dim")
    return table


def _show_bars(result: Scaling) -> None:
    rows = [(way.name, way.tokens_per_second, "█") for way in result.measured]
    rows += [(_projected_name(row.processes), row.tokens_per_second, "░") for row in result.projected]
    most = max(speed for _, speed, _ in rows)
    for name, speed, block in rows:
        display.out.print(f"{name:>{NAME_WIDTH}} [cyan]{block * max(1, round(PLOT_WIDTH * speed / most))}[/]")


def _show_legend(result: Scaling) -> None:
    """Print what the columns mean, and what a projection assumes."""
    legend = [
        "speedup: over one core; of ideal: speedup over the number of cores; memory: of each process; busy: cores that"
        " were computing; waiting: share of the time spent waiting for gradients"
    ]
    rate = result.all_reduce_bytes_per_second
    if rate is not None:
        legend.append(
            f"expected: computed from the update on one core and from averaging gradients at {human_bytes(rate)}/s"
        )
    if result.projected:
        legend.append(
            "projected: not measured but computed in the same way, for processes that have one core like these each and"
            " are connected as fast as on this machine; a slower network gives less (docs/scaling.md)"
        )
    missed = _missed_expectation(result)
    if result.projected and missed:
        legend.append(f"{missed}: projections, which are computed in the same way, may be as far off")
    grown = [f"{row.batch_size} for {row.processes}" for row in result.projected if row.is_batch_grown]
    if grown:
        legend.append(f"projected with larger batches, which the processes can divide: {', '.join(grown)} processes")
    for line in legend:
        display.say_markup(f"[dim]{line}[/]")


def _missed_expectation(result: Scaling) -> str:
    """Return which processes were clearly slower than expected, and how fast they were; empty if none were."""
    compared = [(way.speedup / way.expected_speedup, way) for way in result.measured if way.expected_speedup]
    share, way = min(compared, key=lambda pair: pair[0], default=(1.0, None))
    if way is None or share >= EXPECTATION_MET:
        return ""
    return f"{way.name} reached {share:.0%} of the expected speed"


def _projected_name(num_processes: int) -> str:
    return plural(num_processes, "process", "processes")
