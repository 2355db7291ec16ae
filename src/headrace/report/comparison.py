"""The section that compares runs: what differs in their configurations, before anything that follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.report.blocks import Block, Paragraph, Table
from headrace.report.read import RunRecord

PLACES = ("run.out", "run.resume", "run.force", "run.measure_again")
"""Keys that say where a run is and how it was started, not how it trains."""


def differences(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the keys whose values differ; empty for a single run."""
    if len(runs) < 2:
        return []
    rows = [[key, *values] for key, values in all_values(runs) if len(set(values)) > 1 and key not in PLACES]
    if not rows:
        return [Paragraph("Their configurations are the same.", is_key=True)]
    return [Table(["key", *(run.name for run in runs)], rows)]


def all_values(runs: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """Return every key of the configuration, sorted, and its value in each run."""
    configs = [run.config.model_dump() for run in runs]
    return [
        (f"{section}.{key}", [str(config[section][key]) for config in configs])
        for section, values in sorted(configs[0].items())
        for key in sorted(values)
    ]
