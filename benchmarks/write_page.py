"""Write docs/benchmarks.md from what the three `headrace bench … --json` printed; `make bench` runs it.

python benchmarks/write_page.py runs/bench docs/benchmarks.md
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

Row = dict[str, Any]
# Column, key, how many of the unit make one shown, format, and whether less is better.
LOADER_COLUMNS = [
    ("M tokens/s", "tokens_per_second", 1e6, ",.1f", False),
    ("headrace is", "headrace_is", 1, ",.2f x", None),
    ("first batch s", "first_batch_s", 1, ".2f", True),
    ("data wait %", "data_wait_percent", 1, ".1f", True),
    ("CPU s / M tokens", "cpu_s_per_million_tokens", 1, ".4f", True),
    ("memory MB", "peak_memory_bytes", 1e6, ",.0f", True),
    ("own format s", "prepare_s", 1, ".1f", None),
    ("same order: restart", "same_order_after_restart", 1, "", False),
    ("other workers", "same_order_with_other_workers", 1, "", False),
]
TRAIN_COLUMNS = [
    ("tokens/s", "tokens_per_second", 1, ",.0f", False),
    ("from", "slowest", 1, ",.0f", None),
    ("to", "fastest", 1, ",.0f", None),
    ("headrace is", "headrace_is", 1, ",.2f x", None),
    ("% of peak", "percent_of_peak", 1, ".0f", None),
    ("memory MB", "peak_memory_bytes", 1e6, ",.0f", True),
    ("same losses", "same_losses", 1, "", None),
]
TOKENIZE_COLUMNS = [
    ("MB/s", "megabytes_per_second", 1, ",.1f", False),
    ("headrace is", "headrace_is", 1, ",.2f x", None),
    ("memory MB", "peak_memory_bytes", 1e6, ",.0f", True),
    ("same ids", "same_ids", 1, "", None),
]
PARTS = {
    "loaders": ("Serving batches", LOADER_COLUMNS),
    "train": ("Training steps", TRAIN_COLUMNS),
    "tokenize": ("Encoding text", TOKENIZE_COLUMNS),
}
# Why a row of headrace is worse in a column, where that is known.
TOKENISES = "it tokenises while it serves; the peers' tokens were made before their clocks started"
GATHER = "the limit is a bare copy of the same rows, which `benchmarks/bench_serving.py` measures"
PRODUCTS = "most of a step are the same matrix products on every side; docs/LOG.md has what was tried"
REASONS = {
    ("loaders", "headrace-text", "tokens_per_second"): TOKENISES,
    ("loaders", "headrace-text", "cpu_s_per_million_tokens"): TOKENISES,
    ("loaders", "headrace-text", "first_batch_s"): "the first shuffle block, up to 64 MiB of text, is tokenised first",
    ("loaders", "headrace-text", "data_wait_percent"): TOKENISES,
    ("loaders", "headrace-text", "peak_memory_bytes"): "a tokenizer with its memory of words for each of two threads",
    (
        "loaders",
        "headrace-cache",
        "first_batch_s",
    ): "every shard is checked against its checksums when it is first used",
    ("loaders", "headrace-cache", "peak_memory_bytes"): "its queue may grow to 256 batches",
    ("train", "headrace", "tokens_per_second"): PRODUCTS,
    ("train", "headrace", "peak_memory_bytes"): "glibc is set to keep freed buffers, which is what makes steps faster",
    (
        "tokenize",
        "headrace",
        "peak_memory_bytes",
    ): "a tokenizer with a memory of words per core, where gigatoken shares one",
}
# What headrace promises: benchmark, which row, how many times as fast as the best peer, and why not where it is not.
TARGETS = [
    ("loaders", "headrace-cache", 20.0, GATHER),
    ("loaders", "headrace-text", 1.0, TOKENISES),
    ("train", "headrace", 1.3, PRODUCTS),
]
INTRODUCTION = """# Benchmarks

Written by `benchmarks/write_page.py` from what the commands below printed; `make bench` runs them all.
headrace and its peers read the same bytes in one run, each in a process of its own; the code of each is one short file
in `src/headrace/bench/peers/`. Compare rows, not machines.

- "headrace is" is how many times as fast headrace is (from its cache).
- Tokens/s are counted after the first batch, which has a column of its own, for every peer alike. The exception is
  `headrace-text`, which has no tokens to begin with: one whole pass from its very start counts, the first batch
  included. Counting it like the others would give it the text that it tokenises before the first batch for nothing.
- "own format s" is what a peer needs to write its format from tokens. Making the tokens is in nobody's figures but
  those of `headrace-text`.
- Memory is what a peer and its children have allocated at once, mapped files not counted.
"""


def shown(row: Row, key: str, scale: float, form: str) -> str:
    value = row.get(key)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    number, _, unit = form.partition(" ")
    return f"{format(value / scale, number)} {unit}".strip()


def table(rows: list[Row], columns: list[tuple[Any, ...]]) -> list[str]:
    lines = [
        f"| peer | version | {' | '.join(name for name, *_ in columns)} |",
        f"| --- | --- |{' ---: |' * len(columns)}",
    ]
    for row in rows:
        cells = [shown(row, key, scale, form) for _, key, scale, form, _ in columns]
        lines.append(f"| {row['peer']} | {row['version']} | {' | '.join(cells)} |")
    return lines


def worse_at(benchmark: str, rows: list[Row], columns: list[tuple[Any, ...]]) -> list[str]:
    """Return a line for every figure of headrace that a peer beats, with the reason."""
    peers = [row for row in rows if not is_headrace(row)]
    found = []
    for ours in filter(is_headrace, rows):
        for name, key, scale, form, less_is_better in columns:
            mine = ours.get(key)
            if less_is_better is None or mine is None:
                continue
            known = [row for row in peers if row.get(key) is not None]
            better = [row for row in known if (row[key] < mine if less_is_better else row[key] > mine)]
            # What looks the same in the table is not called worse.
            better = [row for row in better if shown(row, key, scale, form) != shown(ours, key, scale, form)]
            if better:
                theirs = ", ".join(f"{row['peer']} {shown(row, key, scale, form)}" for row in better)
                why = REASONS.get((benchmark, ours["peer"], key), "the reason is not known")
                found.append(f"- {ours['peer']}, {name}: {shown(ours, key, scale, form)}; {theirs}. Why: {why}.")
    return found


def targets(benchmark: str, rows: list[Row], measure: str) -> list[str]:
    """Return a line for every target against the best peer, with what was measured."""
    peers = [row for row in rows if not is_headrace(row)]
    found = []
    for name, ours, target, why in TARGETS:
        row = next((row for row in rows if row["peer"] == ours), None)
        if name != benchmark or row is None or not peers:
            continue
        best = max(peers, key=lambda peer: float(peer[measure]))
        ratio = row[measure] / best[measure]
        verdict = "reached" if ratio >= target else f"**not reached**: {why}"
        found.append(f"- {ours}: {ratio:.2f} x the best peer ({best['peer']}); target {target:g} x, {verdict}.")
    return found


def is_headrace(row: Row) -> bool:
    return str(row["peer"]).startswith("headrace")


def part(result: dict[str, Any]) -> list[str]:
    benchmark = result["benchmark"]
    title, columns = PARTS[benchmark]
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in result["command_options"].items())
    lines = [f"## {title}", "", f"    headrace bench {benchmark} {options}".rstrip(), ""]
    for name, rows in result["results"].items():
        done = [row for row in rows if row["status"] == "ok"]
        lines += [f"**{name}**" if len(result["results"]) > 1 else "", "", *table(done, columns), ""]
        for row in rows:
            if row["status"] != "ok":
                word = "not installed:" if row["status"] == "missing" else "failed:"
                lines.append(f"- {row['peer']} {row['version']}: {word} `{row['message']}`")
        promised = targets(benchmark, done, columns[0][1])
        worse = worse_at(benchmark, done, columns)
        lines += ["", *(["Against the best peer:", "", *promised, ""] if promised else [])]
        lines += ["What headrace is worse at:" if worse else "headrace is worse at none of these here.", "", *worse, ""]
    return lines


def main() -> None:
    folder, page = Path(sys.argv[1]), Path(sys.argv[2])
    results = [json.loads((folder / f"{name}.txt").read_text().splitlines()[-1]) for name in PARTS]
    machine = results[0]["machine"]
    memory = machine["memory_bytes"] / 2**30
    where = f"{machine['processor']}, {machine['cores']} cores, {memory:.0f} GiB; {machine['platform']}"
    lines = [INTRODUCTION, f"Measured on {date.today()}. Machine: {where}; Python {machine['python']}.", ""]
    for result in results:
        lines += part(result)
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    page.write_text(text.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
