"""The section on what would make a run faster: measured gains, then predicted ones."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.perf.advice import advise
from headrace.report.blocks import Block, Paragraph, Table
from headrace.report.read import RunRecord
from headrace.run.records import FindingRecord
from headrace.stages import PAUSES


def recommendations(runs: Sequence[RunRecord]) -> list[Block]:
    """List what to try: measured gains before predicted ones, each by its size."""
    measured: list[tuple[float, list[str]]] = []
    predicted: list[tuple[float, list[str]]] = []
    for run in runs:
        name = [run.name] if len(runs) > 1 else []
        measured += [(gain, [*name, *row]) for gain, row in _measured_gains(run)]
        predicted += [(gain, [*name, *row]) for gain, row in _predicted_gains(run)]
    rows = [row for part in (measured, predicted) for _, row in sorted(part, key=lambda one: -one[0])]
    if not rows:
        return [Paragraph("The breakdown of this run shows nothing that would gain more than 1%.")]
    headings = ["try", "gain", "changes the result", "because"]
    blocks: list[Block] = [Table([*(["run"] if len(runs) > 1 else []), *headings], rows)]
    note = "Predicted gains come from the shares of the time, as upper bounds."
    if any(run.tuning is None for run in runs):
        note += " To measure gains, run: headrace tune --run RUN."
    return [*blocks, Paragraph(note)]


def _measured_gains(run: RunRecord) -> list[tuple[float, list[str]]]:
    """Return a row for each change that `headrace tune --run` found to be faster."""
    return [
        (
            found.gain_percent or 0.0,
            [
                ", ".join(f"{key}={value}" for key, value in found.changes.items()),
                f"measured: {found.gain_percent:.1f}% ± {found.spread_percent or 0.0:.1f}",
                "yes" if found.changes_result else "no",
                found.note or "measured by headrace tune, on top of the changes it had taken before",
            ],
        )
        for found in _measured(run)
        if (found.gain_percent or 0.0) > (found.spread_percent or 0.0)
    ]


def _predicted_gains(run: RunRecord) -> list[tuple[float, list[str]]]:
    """Return a row for each gain that the breakdown predicts and nobody has measured."""
    known = {key for found in _measured(run) for key in found.changes}
    often: dict[str, int | None] = {stage: run.steps_between(stage) for stage in PAUSES}
    return [
        (
            advice.gain_percent,
            [
                advice.title,
                f"predicted: up to {advice.gain_percent:.0f}%",
                "yes" if advice.changes_result else "no",
                advice.why,
            ],
        )
        for advice in advise(run.shares, run.percent_of_peak, run.training.model_dump(), often)
        if advice.key not in known
    ]


def _measured(run: RunRecord) -> list[FindingRecord]:
    """Return the findings of `headrace tune --run` that have a figure."""
    findings = run.tuning.findings if run.tuning else []
    return [found for found in findings if found.gain_percent is not None]
