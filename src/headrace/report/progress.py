"""Sections on the progress of a run: loss, throughput, data wait, processor use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.perf import speed
from headrace.report.blocks import Block, Chart, Paragraph, Series, Table
from headrace.report.columns import TIMES, in_one_unit
from headrace.report.read import RunRecord
from headrace.run.records import StepRecord
from headrace.units import human_percent, plural

MAX_POINTS = 160
TABLE_ROWS = 12
FAR_LONGER = 4
"""How many times longer than another a run is, when lines of both do not fit on one linear axis."""

Value = Callable[[RunRecord, StepRecord], float | None]


def thin(points: Sequence[tuple[float, float]], most: int = MAX_POINTS) -> list[tuple[float, float]]:
    """Average neighbouring points, so that at most `most` are left.

    >>> thin([(1, 2.0), (2, 4.0), (3, 6.0), (4, 8.0)], most=2)
    [(1.5, 3.0), (3.5, 7.0)]
    """
    size = -(-len(points) // most) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


@dataclass(frozen=True)
class Axis:
    """What charts over the course of runs have from left to right."""

    label: str
    place: Callable[[StepRecord], float]
    is_logarithmic: bool


def course(runs: Sequence[RunRecord]) -> Axis:
    """Return steps, or tokens where runs have updates of different size.

    The axis is logarithmic where one run is far longer than another, which would else be crushed at its left end.
    """
    by_tokens = len({run.training.tokens_per_update for run in runs}) > 1
    lengths = [run.tokens if by_tokens else run.metrics[-1].step for run in runs]
    is_logarithmic = max(lengths) > FAR_LONGER * min(lengths)
    if by_tokens:
        return Axis("tokens", lambda line: float(line.tokens), is_logarithmic)
    return Axis("step", lambda line: float(line.step), is_logarithmic)


def over_course(runs: Sequence[RunRecord], title: str, label: str, value: Value) -> Chart:
    """Return a chart with one line for each run."""
    axis = course(runs)
    lines = []
    for number, run in enumerate(runs):
        points = [(axis.place(line), y) for line in run.metrics if (y := value(run, line)) is not None]
        lines.append(Series(run.name, thin(points), colour=number))
    drawn = [line for line in lines if line.points]
    return Chart(title, axis.label, label, drawn, axis.is_logarithmic, starts_at_zero=True)


def loss_progression(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the loss of training and validation."""
    axis = course(runs)
    lines: list[Series] = []
    for number, run in enumerate(runs):
        smoothed = thin([(axis.place(line), loss) for line, loss in run.smoothed_losses])
        validation = thin([(axis.place(line), loss) for line, loss in run.evaluations])
        if len(runs) > 1:
            lines.append(Series(f"{run.name}, training", smoothed, colour=number))
            lines.append(Series(f"{run.name}, validation", validation, colour=number, look="dashed"))
        else:
            single = [(axis.place(line), line.loss) for line in run.metrics if line.loss is not None]
            lines.append(Series("training, single batches", thin(single), colour=0, look="faint"))
            lines.append(Series("training, smoothed", smoothed, colour=0))
            lines.append(Series("validation", validation, colour=1))
    drawn = [line for line in lines if line.points]
    chart = Chart("Training and validation", axis.label, "nats per token", drawn, axis.is_logarithmic, is_wide=True)
    skipped = [(run.prefix, sum(line.skipped for line in run.metrics)) for run in runs]
    notes = [
        Paragraph(f"{prefix}{plural(number, 'update')} skipped because the loss or gradient was not finite.")
        for prefix, number in skipped
        if number
    ]
    return [chart, *notes]


def _training_rate(run: RunRecord, line: StepRecord) -> float:
    """Return the throughput of a step without evaluation and saving, which come rarely and would hide the rest."""
    return speed.tokens_per_second(run.training.tokens_per_update, line.update_s)


def data_wait(runs: Sequence[RunRecord]) -> list[Block]:
    """Show and grade the share of each step that was spent waiting for its batch."""
    grades = [
        Paragraph(f"{run.prefix}{human_percent(wait)} of a step (median), {speed.data_wait_grade(wait)}.", is_key=True)
        for run in runs
        for wait in [run.data_wait_percent]
    ]
    depth = over_course(runs, "Batches ready", "batches", lambda _, line: line.queue_depth)
    return [*grades, over_course(runs, "Data wait", "% of the step", lambda _, line: line.data_wait_percent), depth]


def throughput(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the tokens per second and the busy cores, over the course of the runs."""
    axis = course(runs)
    lines = []
    for number, run in enumerate(runs):
        steps = {line.step: line for line in run.metrics}
        points = [
            (axis.place(steps[step]), cpu_s / max(elapsed_s, 1e-3)) for step, cpu_s, elapsed_s in run.cpu_intervals
        ]
        if points:
            lines.append(Series(run.name, thin(points, 60), colour=number))
    cores = Chart("Processor use", axis.label, "cores", lines, axis.is_logarithmic, starts_at_zero=True)
    rate = over_course(runs, "Throughput", "tokens/s while training", _training_rate)
    means = [
        Paragraph(f"{run.prefix}{'unknown' if run.cpu_cores is None else f'{run.cpu_cores:.2f}'} cores on average.")
        for run in runs
    ]
    return [*means, rate, *([cores] if lines else [])]


def training_figures(runs: Sequence[RunRecord]) -> list[Block]:
    """Show losses in figures, at some evaluations and by source, with learning rate and gradient norm."""
    rate = over_course(runs, "Learning rate", "", lambda _, line: line.learning_rate)
    norm = over_course(runs, "Gradient norm", "", lambda _, line: None if line.skipped else line.gradient_norm)
    blocks: list[Block] = [rate, norm]
    for run in runs:
        blocks.append(_loss_table(run))
        by_source: dict[str, float | None] = run.last("validation_loss_by_source") or {}
        if by_source:
            losses = [[name, "none" if loss is None else f"{loss:.3f}"] for name, loss in by_source.items()]
            blocks.append(Table([f"{run.prefix}source", "validation loss"], losses))
    return blocks


def _loss_table(run: RunRecord) -> Table:
    """Return the figures of the first step and of some evaluations."""
    chosen = [line for line, _ in run.evaluations] or run.metrics
    every = -(-len(chosen) // TABLE_ROWS)
    by_step = {line.step: line for line in (run.metrics[0], *chosen[every - 1 :: every], chosen[-1])}
    unit, times = in_one_unit([line.elapsed_s for line in by_step.values()], TIMES)
    smoothed = {line.step: f"{loss:.3f}" for line, loss in run.smoothed_losses}
    rows = [
        [
            f"step {line.step:,}",
            time,
            smoothed.get(line.step, "not finite"),
            "" if line.validation_loss is None else f"{line.validation_loss:.3f}",
            "" if line.validation_bits_per_byte is None else f"{line.validation_bits_per_byte:.3f}",
            f"{line.learning_rate:.2e}",
            "" if line.tokens_per_second is None else f"{line.tokens_per_second:,.0f}",
        ]
        for line, time in zip(by_step.values(), times, strict=True)
    ]
    headings = [f"time, {unit}", "training loss, smoothed", "validation loss", "bits per byte", "learning rate"]
    return Table([run.prefix.removesuffix(": "), *headings, "tokens/s so far"], rows)
