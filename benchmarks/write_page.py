"""Write docs/benchmarks.md from what the three `headrace bench … --json` printed; `make bench` runs it.

python benchmarks/write_page.py runs/bench docs/benchmarks.md
"""

from __future__ import annotations

import json
import sys
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
    ("same order: restart", "same_order_after_restart", 1, "", None),
    ("other workers", "same_order_with_other_workers", 1, "", None),
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
INTRODUCTION = """# Benchmarks

Written by `benchmarks/write_page.py` from what the commands below printed; `make bench` runs them all.
headrace and its peers read the same bytes in one run, each in a process of its own;
the code of each is one short file in `src/headrace/peers/`. Compare rows, not machines. "headrace is" is how many
times as fast headrace is (from its cache; `headrace-text` is from raw text, with no cache to begin with). Memory is
what a peer and its children have allocated at once, mapped files not counted.
`headrace-text` counts from the very start,
training of the tokenizer included, so over few batches it is far below peers that read tokens prepared before.
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


def worse_at(rows: list[Row], columns: list[tuple[Any, ...]]) -> list[str]:
    """Where a peer beats every headrace row."""
    ours = [row for row in rows if row["peer"].startswith("headrace")]
    found = []
    for name, key, scale, form, less_is_better in columns:
        values = [row[key] for row in ours if row.get(key) is not None]
        if less_is_better is None or not values:
            continue
        best = min(values) if less_is_better else max(values)
        better = [r for r in rows if r.get(key) is not None and (r[key] < best if less_is_better else r[key] > best)]
        if better:
            peers = ", ".join(f"{row['peer']} {shown(row, key, scale, form)}" for row in better)
            found.append(f"- {name}: headrace {shown({key: best}, key, scale, form)}; {peers}")
    return found


def part(result: dict[str, Any]) -> list[str]:
    title, columns = PARTS[result["benchmark"]]
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in result["command_options"].items())
    lines = [f"## {title}", "", f"    headrace bench {result['benchmark']} {options}".rstrip(), ""]
    for name, rows in result["results"].items():
        done = [row for row in rows if row["status"] == "ok"]
        lines += [f"**{name}**" if len(result["results"]) > 1 else "", "", *table(done, columns), ""]
        for row in rows:
            if row["status"] != "ok":
                word = "not installed:" if row["status"] == "missing" else "failed:"
                lines.append(f"- {row['peer']} {row['version']}: {word} `{row['message']}`")
        worse = worse_at(done, columns)
        lines += [
            "",
            "What headrace is worse at:" if worse else "headrace is worse at none of these here.",
            "",
            *worse,
            "",
        ]
    return lines


def main() -> None:
    folder, page = Path(sys.argv[1]), Path(sys.argv[2])
    results = [json.loads((folder / f"{name}.txt").read_text().splitlines()[-1]) for name in PARTS]
    machine = results[0]["machine"]
    memory = machine["memory_bytes"] / 2**30
    where = f"{machine['processor']}, {machine['cores']} cores, {memory:.0f} GiB; {machine['platform']}"
    lines = [INTRODUCTION, f"Machine: {where}; Python {machine['python']}.", ""]
    for result in results:
        lines += part(result)
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    page.write_text(text.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
