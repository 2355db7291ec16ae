"""Command `headrace plan`: a prediction of what a run will cost, or a proposal of what to run in a given time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from headrace.cli import display
from headrace.cli.arguments import Arguments, AsJson, ConfigFile, Preset
from headrace.cli.commands.plan_comparison import show_comparison
from headrace.cli.layers import config_files, gather
from headrace.errors import UsageError
from headrace.instruments.plan import Plan
from headrace.instruments.proposal import Proposal
from headrace.instruments.short_run import ShortRun
from headrace.jobs.plan import plan as make_plan
from headrace.jobs.plan import plan_apart, plan_minutes
from headrace.report.computing import flops_table
from headrace.run.config import Config, Layers
from headrace.units import UNKNOWN, human_bytes, human_count, human_time

DEFAULT_OUT = Path("plan.yaml")


def plan(
    arguments: Arguments = None,
    config: ConfigFile = None,
    preset: Preset = "",
    minutes: Annotated[
        float | None,
        typer.Option(min=0.05, help="Propose the config that should reach the lowest loss in this many minutes."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"With --minutes: the config file to write. Default: {DEFAULT_OUT}.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict what a run will cost. It shows speed, time, memory and disk; with --minutes, it proposes a run instead.

    Several config files are compared side by side.

    A prediction rehearses the run for a few seconds. A proposal trains several short runs, which together take about a
    fifth of the minutes, and at most three. It keeps every value that a config or KEY=VALUE sets.
    """
    if minutes is not None:
        _propose(
            gather(arguments or [], preset, None, None, config, has_first_run=False),
            minutes,
            out or DEFAULT_OUT,
            as_json,
        )
        return
    if out is not None:
        raise UsageError("--out needs --minutes: a prediction writes no file.")
    everything = [*map(str, config or []), *(arguments or [])]
    if len(config_files(everything)) > 1:
        _compare(everything, preset, as_json)
        return
    layers = gather(arguments or [], preset, None, None, config)
    with display.spinner("Rehearsing"):
        result = make_plan(layers.build())
    show_plan(result)
    if as_json:
        typer.echo(json.dumps(result.as_json()))


def _compare(arguments: list[str], preset: str, as_json: bool) -> None:
    """Predict the runs of several configuration files, each with all other arguments, and show them side by side."""
    files = config_files(arguments)
    others = [argument for argument in arguments if argument not in files]
    configs = [gather([file, *others], preset, None, None).build() for file in files]
    plans = []
    with display.spinner("Rehearsing") as show:
        for file, config in zip(files, configs, strict=True):
            show(file)
            plans.append(plan_apart(config))
    show_comparison(files, configs, plans)
    if as_json:
        typer.echo(json.dumps({"plans": [{"config": file, **plan} for file, plan in zip(files, plans, strict=True)]}))


def _propose(given: Layers, minutes: float, out: Path, as_json: bool) -> None:
    proposal = plan_minutes(given, minutes, out, _show_short_run)
    show_proposal(proposal, out)
    if as_json:
        typer.echo(json.dumps({**proposal.as_json(), "out": str(out)}))


def _show_short_run(run: ShortRun) -> None:
    tokens = human_count(run.exposure.tokens)
    display.err.print(
        f"[dim]tried {_shape(run.config)}: {run.bits_per_byte:.3f} bits per byte after {tokens} tokens[/]"
    )


def _shape(config: Config) -> str:
    model, training = config.model, config.training
    return (
        f"{model.num_layers} layers of {model.d_model}, {config.data.tokenizer}, batches of {training.batch_size} x"
        f" {training.sequence_length}"
    )


def show_proposal(proposal: Proposal, out: Path) -> None:
    """Print the proposal, what is expected of it, and how to run it."""
    prospect, model = proposal.prospect, proposal.config.model
    exposure = prospect.exposure
    display.say_markup(f"[bold]{escape(_shape(proposal.config))}[/]: {human_count(exposure.parameters)} parameters")
    display.say_markup(f"  {model.num_heads} heads, feed-forward {model.d_ff}, vocabulary {model.vocab_size:,}")
    training_s = exposure.tokens / prospect.tokens_per_second
    end = ", where it ends" if proposal.config.training.num_epochs else ""
    display.say_markup(
        f"  {human_count(exposure.tokens)} tokens in {human_time(training_s)} of training at"
        f" {prospect.tokens_per_second:,.0f} tokens/s: {exposure.epochs:.1f} epochs{end}"
    )
    low, high = proposal.interval
    display.say_markup(
        f"  expected: about [bold]{prospect.bits_per_byte:.2f}[/] bits per byte on the validation part, between"
        f" {low:.2f} and {high:.2f}"
    )
    display.say_markup(f"  planned in {human_time(proposal.planning_s)}, with {len(proposal.runs)} short runs")
    for assumption in proposal.assumptions:
        display.say_markup(f"  [dim]assumed: {escape(assumption)}[/]")
    display.say_markup(f"written to {escape(str(out))}. Run it with: headrace train {escape(str(out))}")


def show_plan(plan: Plan) -> None:
    """Print the verdict first, then time, memory, disk and assumptions, and FLOPs by part at the end."""
    display.say_markup(_verdict(plan))
    for line in (*_times(plan), *_memory(plan), _disk(plan)):
        display.say_markup(line)
    for assumption in plan.assumptions:
        display.say_markup(f"  [dim]assumed: {escape(assumption)}[/]")
    display.out.print()
    display.out.print(_counts(plan), soft_wrap=False)


def _verdict(plan: Plan) -> str:
    speed = UNKNOWN if plan.tokens_per_second is None else f"{plan.tokens_per_second:,.0f} tokens/s"
    total = "" if plan.total_s is None else f", {human_time(plan.total_s)} in total"
    fits = "it fits" if plan.fits else "[red]it does not fit[/]"
    return f"[bold]{speed} predicted{total}; {human_bytes(plan.memory.total)} of memory: {fits}[/]"


def _times(plan: Plan) -> Iterator[str]:
    """Yield lines on what takes how long, and why."""
    step, epoch = (UNKNOWN if s is None else human_time(s) for s in (plan.step_s, plan.epoch_s))
    steps = "" if plan.total_steps is None else f", {plan.total_steps:,} steps until the limit"
    if plan.mixture:
        yield f"  mixture: {escape(plan.mixture)}"
    yield f"  time: {step} per step, {epoch} per epoch{steps}"
    if plan.evaluation_s:
        yield f"  this includes evaluations of {human_time(plan.evaluation_s)} each, but no samples and checkpoints"
    execution = plan.execution
    kernel = "oneDNN" if execution.matmul == "onednn" else "default kernels"
    attention = "attention by batched products" if execution.attention == "products" else "fused attention"
    code = "the native library" if execution.engine == "native" else f"{kernel} and {attention}"
    yield f"  computed in {execution.precision} with {code}, micro-batch {execution.micro_batch_size}"
    yield f"  bound by {plan.bound.name}: {plan.bound.evidence}"


def _memory(plan: Plan) -> Iterator[str]:
    """Yield lines on the memory by part, and on what would make it fit."""
    parts = ", ".join(f"{name} {human_bytes(size)}" for name, size in plan.memory.as_dict().items() if size)
    yield f"  memory: {parts}"
    free = human_bytes(plan.free_memory_bytes)
    if plan.fits:
        yield f"  fits: {free} are free, {human_bytes(plan.headroom_bytes)} would be left"
        return
    yield f"  [bold red]does not fit:[/] {free} are free, {human_bytes(-plan.headroom_bytes)} are missing"
    for remedy in plan.remedies:
        yield f"  try: {escape(remedy)}"


def _disk(plan: Plan) -> str:
    return (
        f"  disk: {human_bytes(plan.cache_bytes + plan.checkpoint_bytes)}, of which tokens"
        f" {human_bytes(plan.cache_bytes)} and checkpoints {human_bytes(plan.checkpoint_bytes)};"
        f" {human_bytes(plan.free_disk_bytes)} are free"
    )


def _counts(plan: Plan) -> Table:
    """Return the parameters and FLOPs of an update by part, as the report shows them."""
    counted = flops_table(plan.work)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in counted.headings:
        table.add_column(heading, justify="right" if table.columns else "left")
    for row in counted.rows:
        table.add_row(*row)
    return table
