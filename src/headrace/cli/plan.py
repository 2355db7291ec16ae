"""`headrace plan`: what a run will cost, before it starts."""

from __future__ import annotations

import json

import typer
from rich.markup import escape
from rich.table import Table

from headrace.cli import display
from headrace.cli.training import Arguments, AsJson, Preset, gather
from headrace.perf.flops import PHASES
from headrace.perf.units import human_bytes, human_count, human_percent, human_time
from headrace.recipes.plan import Plan
from headrace.recipes.plan import plan as make_plan


def plan(arguments: Arguments = None, preset: Preset = "", as_json: AsJson = False) -> None:
    """Predict speed, time, memory and disk of a run, from its counts and a rehearsal of a few seconds."""
    config = gather(arguments or [], preset, None, None).build()
    with display.spinner("Rehearsing"):
        result = make_plan(config)
    show_plan(result)
    if as_json:
        typer.echo(json.dumps(result.as_json()))


def show_plan(plan: Plan) -> None:
    display.out.print(_counts(plan))
    seconds = "unknown" if plan.step_s is None else f"{1e3 * plan.step_s:,.0f} ms"
    speed = "unknown" if plan.tokens_per_second is None else f"{plan.tokens_per_second:,.0f} tokens/s"
    epoch, total = (("unknown" if s is None else human_time(s)) for s in (plan.epoch_s, plan.total_s))
    steps = "" if plan.total_steps is None else f" for {plan.total_steps:,} steps"
    display.out.print(f"[bold]{speed}[/] predicted: {seconds} a step, {epoch} an epoch, {total}{steps} in all")
    execution = plan.execution
    kernel = "oneDNN" if execution.use_onednn else "default kernels"
    display.out.print(f"  computed in {execution.precision} with {kernel}, micro-batch {execution.micro_batch_size}")
    display.out.print(f"  bound by {plan.bound.name}: {plan.bound.evidence}")
    parts = ", ".join(f"{name} {human_bytes(size)}" for name, size in plan.memory.as_dict().items())
    display.out.print(f"[bold]{human_bytes(plan.memory.total)}[/] of memory: {parts}")
    free = human_bytes(plan.free_memory_bytes)
    if plan.fits:
        display.out.print(f"  fits: {free} are free, {human_bytes(plan.headroom_bytes)} would be left")
    else:
        missing = human_bytes(-plan.headroom_bytes)
        display.out.print(f"  [bold red]does not fit:[/] {free} are free, {missing} are missing")
        for remedy in plan.remedies:
            display.out.print(f"  try: {escape(remedy)}")
    display.out.print(
        f"[bold]{human_bytes(plan.cache_bytes + plan.checkpoint_bytes)}[/] of disk: tokens"
        f" {human_bytes(plan.cache_bytes)}, checkpoints {human_bytes(plan.checkpoint_bytes)}"
    )
    for assumption in plan.assumptions:
        display.out.print(f"  [dim]assumed: {escape(assumption)}[/]")


def _counts(plan: Plan) -> Table:
    """Parameters and FLOPs of an update by part."""
    table = Table(box=None, padding=(0, 2))
    for heading in ("FLOPs of an update", "parameters", *PHASES, "share"):
        table.add_column(heading, justify="left" if heading == "FLOPs of an update" else "right")
    counts = plan.work.counts
    total = sum(plan.work.phase_flops(phase) for phase in PHASES)
    for part, phases in plan.work.flops.items():
        share = human_percent(100 * sum(phases.values()) / total)
        table.add_row(part, human_count(counts.parameters[part]), *(human_count(phases[p]) for p in PHASES), share)
    sums = (human_count(plan.work.phase_flops(phase)) for phase in PHASES)
    table.add_row("in all", human_count(counts.num_parameters), *sums, "100%")
    return table
