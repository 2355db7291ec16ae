"""Command `headrace machine`: the hardware of this machine and its measured rates."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from headrace.cli import display
from headrace.cli.arguments import AsJson
from headrace.jobs.machine import machine as describe_machine
from headrace.machine.contention import is_disturbed
from headrace.machine.measure import BUSY_CORES
from headrace.units import UNKNOWN, human_bytes


def machine(
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, even if measurements are remembered.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show this machine and its measured peaks. It is measured once (a few seconds), then remembered."""
    with display.spinner("Measuring this machine"):
        facts = describe_machine(fresh)
    show_machine(facts)
    if as_json:
        typer.echo(json.dumps(facts))


def show_machine(facts: dict[str, Any]) -> None:
    """Print the facts that `machine --json` has, as tables for people."""
    hardware, measured, disk = facts["hardware"], facts["measurements"], facts["disk"]
    caches = ", ".join(f"{name} {human_bytes(size)}" for name, size in hardware["caches_bytes"].items())
    free = human_bytes(facts["available_memory_bytes"])
    native = facts["native"]
    rows = {
        "processor": f"{hardware['processor']}, {hardware['cores'] or UNKNOWN} cores,"
        f" {hardware['usable_threads']} threads usable",
        "instructions": ", ".join([hardware["simd"], *hardware["fast_formats"]]),
        "native steps": native["instructions"]
        or f"none, PyTorch computes: the library is missing, {native['why_missing']}",
        "caches": caches or UNKNOWN,
        "memory": f"{human_bytes(hardware['memory_bytes'])}, {free} free",
        "disk": f"{disk['filesystem']}, {human_bytes(disk['free_bytes'])} free of {human_bytes(disk['total_bytes'])}",
        "accelerators": ", ".join(hardware["accelerators"]) or "none",
        "memory bandwidth": f"{measured['memory_bandwidth'] / 1e9:.1f} GB/s",
        "disk read": _rate(measured["disk_read_rate"]),
        "fresh memory": f"{_rate(measured['fresh_memory_rate'])} (first touch of a page)",
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        grid.add_row(f"[dim]{name}[/]", escape(value))
    display.out.print(grid)
    table = Table(box=None, padding=(0, 2))
    table.add_column("matrix products")
    counts = list(measured["matmul_flops"]["float32"])
    for count in counts:
        table.add_column(f"{count} thread" + ("s" if count != 1 else ""), justify="right")
    for precision, rates in measured["matmul_flops"].items():
        table.add_row(precision, *(f"{rates[count] / 1e9:,.0f} GFLOP/s" for count in counts))
    display.out.print(table)
    origin = "remembered" if facts["is_remembered"] else "measured"
    display.out.print(f"[dim]{origin}, {facts['measured_at']}, fingerprint {facts['fingerprint']}[/]")
    if is_disturbed(measured["taken_percent"]):
        display.out.print(
            f"[yellow]other programs had the processor for {measured['taken_percent']:.0f}% of the time meanwhile:[/]"
            " the rates are too low, and are not remembered"
        )
    elif measured["busy_cores"] > BUSY_CORES:
        display.out.print(
            f"[yellow]other processes used {measured['busy_cores']:.1f} cores meanwhile:[/] the rates may be too low;"
            " measure again with --fresh when the machine is quiet"
        )


def _rate(bytes_per_second: float | None) -> str:
    return UNKNOWN if bytes_per_second is None else f"{bytes_per_second / 1e9:.2f} GB/s"
