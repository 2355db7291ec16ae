"""Results of a table as files: results.md, results.csv, results.json and results.svg, each replaced as a whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from headrace.files import without_nan, write_atomically
from headrace.units import human_count
from lab.plot import draw
from lab.spread import Row, compare
from lab.table import Table

DISTURBED_PERCENT = 5.0
"""The share of the processor from which other programs spoil a comparison at equal seconds."""


def write_results(
    out: Path, table: Table, results: Sequence[Mapping[str, Any]], failures: Mapping[str, str]
) -> list[Row]:
    """Write the results of all finished cells; return the rows of the table."""
    rows = compare(results, table.baseline, table.seed_spread)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "results.md", as_markdown(table, rows, len(results), failures).encode())
    write_atomically(out / "results.csv", as_csv(results).encode())
    write_atomically(out / "results.json", json.dumps(without_nan(as_json(table, rows, failures)), indent=1).encode())
    write_atomically(out / "results.svg", draw(rows).encode())
    return rows


def as_markdown(table: Table, rows: Sequence[Row], num_finished: int, failures: Mapping[str, str]) -> str:
    """Return the results as tables for people, one for each corpus and budget; the best variant comes first."""
    context = table.judging_context()
    lines = [
        f"{num_finished} of {len(table.cells)} cells are finished. Bits per byte of the held-out text in windows"
        f" {'as long as in training' if context == 'own' else f'of {context} tokens'}; ± is the standard deviation"
        " between seeds, and the 95% interval of a difference.",
        "",
    ]
    for corpus, budget in dict.fromkeys((row.corpus, row.budget) for row in rows):
        mine = sorted((r for r in rows if (r.corpus, r.budget) == (corpus, budget)), key=lambda row: row.mean)
        lines += [
            f"## {corpus}, {budget}",
            "",
            f"| variant | seeds | bits per byte | difference from {_cell(table.baseline)} | verdict | parameters |"
            " tokens | seconds | in its own windows |",
            "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
            *(_line(row) for row in mine),
            "",
            *sorted(
                {f"{row.variant}: {result['note']}.  " for row in mine for result in row.results if result["note"]}
            ),
        ]
    lines += _disturbances(rows)
    lines += [f"Failed: {name}: {why}  " for name, why in failures.items()]
    return "\n".join(lines).rstrip() + "\n"


def _disturbances(rows: Sequence[Row]) -> list[str]:
    """Return a warning for each run that is limited by seconds and was slowed down by other programs."""
    timed = [result for row in rows if row.budget.endswith(" s") for result in row.results]
    return [
        f"Disturbed: {result['variant']}, {result['corpus']}, {result['budget']}, seed {result['seed']}: other programs"
        f" took {result['taken_by_others_percent']:.0f}% of the processor. Delete its run and repeat it.  "
        for result in timed
        if (result["taken_by_others_percent"] or 0.0) > DISTURBED_PERCENT
    ]


def _line(row: Row) -> str:
    spread = "" if row.spread is None else f" ± {row.spread:.4f}"
    difference = "" if row.difference is None or row.verdict == "baseline" else f"{row.difference:+.4f}"
    if difference and row.uncertainty is not None:
        difference += f" ± {row.uncertainty:.4f}"
    first = row.results[0]
    own = f"{_mean(row, 'own_bits_per_byte'):.4f} at {first['own_context']}"
    cells = [
        _cell(row.variant), str(len(row.values)), f"{row.mean:.4f}{spread}", difference, row.verdict,
        human_count(first["parameters"]), human_count(_mean(row, "tokens")), f"{_mean(row, 'train_seconds'):.1f}", own,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _mean(row: Row, key: str) -> float:
    return mean(float(result[key]) for result in row.results)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def as_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """Return one line for each finished cell."""
    written = io.StringIO()
    columns = list(dict.fromkeys(key for result in results for key in result))
    writer = csv.DictWriter(written, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    return written.getvalue()


def as_json(table: Table, rows: Sequence[Row], failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows as a JSON object."""
    return {
        "benchmark": "lab",
        "baseline": table.baseline,
        "context": table.judging_context(),
        "cells": len(table.cells),
        "finished": sum(len(row.values) for row in rows),
        "failures": dict(failures),
        "rows": [
            {
                "corpus": row.corpus, "budget": row.budget, "variant": row.variant, "values": list(row.values),
                "mean": row.mean, "spread": row.spread, "difference": row.difference,
                "uncertainty": row.uncertainty, "verdict": row.verdict,
            }
            for row in rows
        ],
    }  # fmt: skip
