"""The section that compares runs: what differs in their configurations, before anything that follows from it."""

from __future__ import annotations

import json
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
    """Return every key of the configuration, sorted, and its value in each run, as it is written in a file."""
    configs = [run.config.model_dump() for run in runs]
    return [
        (f"{section}.{key}", [_as_typed(config[section][key]) for config in configs])
        for section, values in sorted(configs[0].items())
        for key in sorted(values)
    ]


def _as_typed(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
