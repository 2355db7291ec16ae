"""Sections on the progress of a run: loss, throughput, data wait, processor use, samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.perf import speed
from headrace.report.blocks import Block, Chart, Paragraph, Quote, Series, Table
from headrace.report.read import RunRecord
from headrace.run.records import StepRecord
from headrace.units import human_percent, human_time, plural

MAX_POINTS = 160
TABLE_ROWS = 12

Value = Callable[[RunRecord, StepRecord], float | None]


def thin(points: Sequence[tuple[float, float]], most: int = MAX_POINTS) -> list[tuple[float, float]]:
    """Average neighbouring points, so that at most `most` are left.

    >>> thin([(1, 2.0), (2, 4.0), (3, 6.0), (4, 8.0)], most=2)
    [(1.5, 3.0), (3.5, 7.0)]
    """
    size = -(-len(points) // most) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def over_steps(
    runs: Sequence[RunRecord], title: str, label: str, value: Value, suffix: str = "", starts_at_zero: bool = True
) -> Chart:
    """Return a chart with one line for each run."""
    lines = []
    for run in runs:
        points = [(float(line.step), y) for line in run.metrics if (y := value(run, line)) is not None]
        lines.append(Series(f"{run.name}{suffix}", thin(points)))
    return Chart(title, "step", label, [line for line in lines if line.points], starts_at_zero=starts_at_zero)


def loss_progression(runs: Sequence[RunRecord]) -> list[Block]:
    """Show loss, throughput, learning rate and gradient norm over steps."""
    loss = over_steps(runs, "Loss", "nats per token", lambda _, line: line.loss, ", training", False)
    validation = over_steps(runs, "", "", lambda _, line: line.validation_loss, ", validation")
    both = Chart(loss.title, loss.x_label, loss.y_label, [*loss.series, *validation.series])
    rate = over_steps(runs, "Learning rate", "", lambda _, line: line.learning_rate)
    throughput = over_steps(runs, "Throughput", "tokens/s while training", _training_rate)
    norm = over_steps(runs, "Gradient norm", "", lambda _, line: None if line.skipped else line.gradient_norm)
    skipped = [(run.name, sum(line.skipped for line in run.metrics)) for run in runs]
    notes = [
        Paragraph(f"{name}: {plural(number, 'update')} skipped because the loss or gradient was not finite.")
        for name, number in skipped
        if number
    ]
    return [both, throughput, rate, norm, *notes]


def _training_rate(run: RunRecord, line: StepRecord) -> float:
    """Return the throughput of a step without evaluation and saving, which come rarely and would hide the rest."""
    return speed.tokens_per_second(run.training.tokens_per_update, line.update_s)


def data_wait(runs: Sequence[RunRecord]) -> list[Block]:
    """Show and grade the share of each step that was spent waiting for its batch."""
    grades = [
        Paragraph(f"{run.name}: {human_percent(wait)} of a step (median), {speed.data_wait_grade(wait)}.", is_key=True)
        for run in runs
        for wait in [run.data_wait_percent]
    ]
    depth = over_steps(runs, "Batches ready", "batches", lambda _, line: line.queue_depth)
    return [*grades, over_steps(runs, "Data wait", "% of the step", lambda _, line: line.data_wait_percent), depth]


def cpu_use(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the cores that were busy, over steps and on average."""
    lines = []
    for run in runs:
        points = [(float(step), cpu_s / max(elapsed_s, 1e-3)) for step, cpu_s, elapsed_s in run.cpu_intervals]
        if points:
            lines.append(Series(run.name, thin(points, 60)))
    means = [
        Paragraph(f"{run.name}: {'unknown' if run.cpu_cores is None else f'{run.cpu_cores:.2f}'} cores on average.")
        for run in runs
    ]
    return [*means, Chart("Processor use", "step", "cores", lines, starts_at_zero=True)] if lines else [*means]


def loss_table(runs: Sequence[RunRecord]) -> list[Block]:
    """Show losses in figures, at some evaluations and by source."""
    blocks: list[Block] = []
    for run in runs:
        evaluated = [line for line in run.metrics if line.validation_loss is not None]
        chosen = evaluated or run.metrics
        every = -(-len(chosen) // TABLE_ROWS)
        lines = [run.metrics[0], *chosen[every - 1 :: every], chosen[-1]]
        rows = [_row(line) for number, line in enumerate(lines) if number == 0 or line is not lines[number - 1]]
        headings = ["step", "time", "training loss", "validation", "bits per byte", "learning rate", "tokens/s"]
        blocks.append(Table([f"{run.name}: step" if len(runs) > 1 else "step", *headings[1:]], rows))
        by_source: dict[str, float | None] = run.last("validation_loss_by_source") or {}
        if by_source:
            losses = [[name, "none" if loss is None else f"{loss:.4f}"] for name, loss in by_source.items()]
            blocks.append(Table([f"{run.name}: source" if len(runs) > 1 else "source", "validation"], losses))
    return blocks


def _row(line: StepRecord) -> list[str]:
    validation, bits = line.validation_loss, line.validation_bits_per_byte
    return [
        f"{line.step:,}",
        human_time(line.elapsed_s),
        "not finite" if line.loss is None else f"{line.loss:.4f}",
        "" if validation is None else f"{validation:.4f}",
        "" if bits is None else f"{bits:.3f}",
        f"{line.learning_rate:.2e}",
        "" if line.tokens_per_second is None else f"{line.tokens_per_second:,.0f}",
    ]


def samples(runs: Sequence[RunRecord]) -> list[Block]:
    """Quote the first and the last sample of each run."""
    blocks: list[Block] = []
    for run in runs:
        chosen = run.samples[:1] + run.samples[1:][-1:]
        for (step, text), when in zip(chosen, ("before", "after"), strict=False):
            blocks.append(Quote(f"{run.name}, {when}: step {step:,}", text))
    return blocks or [Paragraph("No samples were written.")]
