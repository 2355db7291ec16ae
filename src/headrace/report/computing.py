"""Sections on computation: FLOPs, roofline, memory, scaling."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.perf.flops import PHASES, Work, least_traffic
from headrace.perf.memory import room_for
from headrace.perf.roofline import Point, attainable, roofline_points
from headrace.report.blocks import Bar, Block, Chart, Paragraph, Series, Table
from headrace.report.columns import COUNTS, SIZES, in_one_unit
from headrace.report.read import RunRecord
from headrace.run.remembered_scaling import Scaling
from headrace.training.optimizers.assignment import state_bytes
from headrace.units import human_bytes, human_percent, human_rate

SCALING_HEADINGS = (
    "on", "tokens/s", "speedup", "expected", "efficiency", "memory per process", "aggregation",
)  # fmt: skip


def flops_and_roofline(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the FLOPs of an update by part, and its stages on the roofline."""
    blocks: list[Block] = []
    scatter: list[Series] = []
    rows = []
    for run in runs:
        blocks.append(flops_table(run.work, run.name) if len(runs) > 1 else flops_table(run.work))
        for point in _points(run):
            label = f"{run.name}: {point.name}" if len(runs) > 1 else point.name
            scatter.append(Series(label, [(point.intensity, point.achieved_flops / 1e9)], is_scatter=True))
            share = human_percent(100 * point.achieved_flops / point.attainable_flops)
            limit = f"{human_rate(point.attainable_flops)} ({point.bound})"
            rows.append([label, f"{point.intensity:.1f}", human_rate(point.achieved_flops), limit, share])
    if not scatter:
        return [*blocks, Paragraph("No roofline: the peak or the memory bandwidth of the machine is unknown.")]
    roof = _roof(next(run for run in runs if _points(run)), scatter)
    both = {"x_is_logarithmic": True, "y_is_logarithmic": True}
    chart = Chart("Roofline", "FLOPs per byte moved", "GFLOP/s", [roof, *scatter], **both, is_wide=True)
    headings = ["stage", "FLOP/byte", "achieved", "attainable (bound by)", "of attainable"]
    return [*blocks, chart, Table(headings, rows)]


def flops_table(work: Work, title: str = "matrix FLOPs of an update") -> Table:
    """Return the parameters and the FLOPs of an update by part and phase."""
    total = sum(work.phase_flops(phase) for phase in PHASES)
    sums = [work.phase_flops(phase) for phase in PHASES]
    unit, cells = in_one_unit([*(flops[phase] for flops in work.flops.values() for phase in PHASES), *sums], COUNTS)
    figures = [cells[start : start + len(PHASES)] for start in range(0, len(cells), len(PHASES))]
    rows = []
    for (part, phases), row in zip(work.flops.items(), figures, strict=False):
        known = [cell if phases[phase] else "·" for cell, phase in zip(row, PHASES, strict=True)]
        parameters = f"{work.counts.parameters[part]:,}"
        rows.append([part, parameters, *known, human_percent(100 * sum(phases.values()) / total)])
    rows.append(["total", f"{work.counts.num_parameters:,}", *figures[-1], "100%"])
    return Table([title, "parameters", *(f"{phase}, {unit}FLOP" for phase in PHASES), "share"], rows)


def _points(run: RunRecord) -> list[Point]:
    bandwidth, peak = run.environment.memory_bandwidth, run.peak_flops
    per_token = run.environment.activation_bytes_per_token
    if not bandwidth or not peak or per_token is None:
        return []
    kept = per_token * run.training.tokens_per_update
    traffic = least_traffic(
        run.work,
        run.num_micro_batches,
        kept,
        state_bytes(run.work.counts, run.training.optimizer, run.training.related_tokens),
    )
    seconds = {stage: value / len(run.metrics) for stage, value in run.seconds.items()}
    return roofline_points(run.work.timed_flops, traffic, seconds, peak, bandwidth)


def _roof(run: RunRecord, scatter: list[Series]) -> Series:
    """Return the two roofs, from left of the first point to right of the last."""
    peak, bandwidth = float(run.peak_flops or 0), float(run.environment.memory_bandwidth or 0)
    intensities = [series.points[0][0] for series in scatter]
    ridge = peak / bandwidth
    ends = (min([*intensities, ridge]) / 3, ridge, max([*intensities, ridge]) * 3)
    return Series("measured roofs", [(x, attainable(x, peak, bandwidth) / 1e9) for x in ends])


def memory(runs: Sequence[RunRecord]) -> list[Block]:
    """Show memory by part, the measured peak, and the headroom."""
    blocks: list[Block] = []
    for run in runs:
        parts = run.environment.memory_parts
        total, peak = run.machine_memory_bytes, run.peak_memory_bytes
        if parts:
            taken = {name: size for name, size in parts.items() if size}
            unit, cells = in_one_unit([*taken.values(), sum(taken.values())], SIZES)
            rows = [(float(size), [name, cell]) for (name, size), cell in zip(taken.items(), cells, strict=False)]
            blocks.append(Bar(f"{run.prefix}memory by count", ["part", unit], rows, ["total", cells[-1]]))
        used = f"{run.prefix}{human_bytes(peak)} at the peak of the process, as measured"
        blocks.append(Paragraph(f"{used}; the machine has {human_bytes(total)}."))
        if parts and total is not None:
            growing = parts.get("activations", 0) + parts.get("fragmentation", 0)
            blocks.append(Paragraph(_room(run, growing, 0.9 * total / run.num_processes - peak)))
    return blocks


def _room(run: RunRecord, growing: int, free: float) -> str:
    """Describe the memory that each process could still use; `growing` bytes grow with the micro-batch."""
    if free <= 0:
        return "No headroom: this run takes more than 90% of the machine's memory."
    factor = room_for(growing, free)
    now, most = run.training.micro_batch_size, run.training.batch_size // run.num_processes
    size = min(most, int(factor * now))
    use = f"micro-batches of {size:,} sequences instead of {now:,}, or " if size > now else ""
    each = "" if run.num_processes == 1 else " for each process"
    return (
        f"Headroom{each}: {human_bytes(free)} below 90% of the machine's memory. That is enough for {use}sequences up"
        f" to {factor:,.{0 if factor >= 10 else 1}f} times as long."
    )


def scaling(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the measured speed of updates by threads and processes, and of matrix products by threads."""
    blocks = [Table(SCALING_HEADINGS, _updates(run.environment.scaling)) for run in runs if run.environment.scaling]
    return [*blocks, *_products(runs)]


def _updates(scaling: Scaling) -> list[list[str]]:
    return [
        [
            way.name,
            f"{way.tokens_per_second:,.0f}",
            f"{way.speedup:.2f}",
            "" if way.expected_speedup is None else f"{way.expected_speedup:.2f}",
            human_percent(way.efficiency_percent),
            human_bytes(way.memory_bytes_per_worker),
            "" if way.aggregation_percent is None else human_percent(way.aggregation_percent),
        ]
        for way in scaling.measured
    ]


def _products(runs: Sequence[RunRecord]) -> list[Block]:
    machine = next((run.environment.machine for run in runs if run.environment.machine), None)
    if machine is None:
        return [Paragraph("Not measured. `headrace scale` measures updates on 1 to all cores.")]
    rows: list[list[str]] = []
    for precision, rates in sorted(machine.measurements.matmul_flops.items()):
        base = rates[min(rates)]
        rows += [[precision, str(n), human_rate(rates[n]), f"{rates[n] / base:.2f}"] for n in sorted(rates)]
    return [Table(["matrix products", "threads", "rate", "speedup"], rows)]
