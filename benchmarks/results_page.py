"""The text of docs/results.md, from what benchmarks/write_results.py measured; no figure of ours is typed in."""

from __future__ import annotations

from typing import Any

Results = dict[str, Any]
INTRODUCTION = """# Reported elsewhere, measured here

Written by `benchmarks/write_results.py`; `make results` measures everything again in half an hour.

Write-ups of training small language models on CPUs report, or promise, the figures in the column "reported elsewhere".
The column "here" is what headrace does with the same shape, batch and sequence length. Unless a row says otherwise, the
network is GPT-2's with AdamW, the nearest to theirs. **The machines differ**: theirs were a laptop with 4 cores and 8
threads and a computer with 12 cores, this one is named below. So a ratio is of machines as much as of programs; compare
programs in [the field side by side](benchmarks.md), where all run on one machine.
"""
# The work, the run that does it here, what was reported, and the highest of that in tokens/s.
SPEEDS = [
    ("6 layers x 512, vocabulary 16,000, 16 x 256", "wiki-gpt2", "54-56", 56),
    ("… in float32", "wiki-gpt2-float32", "54-56", 56),
    ("… 32 sequences", "wiki-gpt2-batch-32", "80-100 (promised)", 100),
    ("… mixed precision", "wiki-gpt2", "150 (promised)", 150),
    ("3 layers x 256, vocabulary 16,000, 32 x 128", "development-gpt2", "500 (promised)", 500),
    ("2 layers x 256, vocabulary 10,000, 32 x 64", "prototype-gpt2", "330-360; 400 (promised)", 400),
    ("6 layers x 512, vocabulary 50,000, 16 x 128", "wiki-gpt2-vocabulary-50000", "48", 48),
    ("4 layers x 384, vocabulary 16,000, 32 x 128", "quality-gpt2", "100-150 (promised)", 150),
    ("6 layers x 512, vocabulary 32,000, 64 x 128", "production-gpt2", "1,000 (promised)", 1000),
]
NOT_MATCHED = """## Not measured, and why

- **A GPU**, which was said to be 50 to 1,000 times as fast: this machine has none.
- **Scaling to 4, 8 and 12 cores** (3.7 x, 7.5 x, 8.3 x reported): this machine has two; only that row is compared.
- **Time per epoch** of corpora that are not available: it follows from tokens/s.
- **Removing a second forward pass** (15 x reported): headrace never had one.
- **2-3 x faster training by a faster loader**: where data wait is near zero, no loader can make training faster.
- **The memory of a cache of tokenised examples** (2-4 GB for 100,000): headrace keeps tokens in a mapped file.
- **Sequence length of the run on characters**: not reported; 64 here.
"""


def value(entry: Results | None, key: str, scale: float = 1.0, form: str = ",.0f") -> str:
    """Return one figure of a command as text; a command that failed, or was not run yet, says so."""
    if entry is None:
        return "not measured yet"
    if "error" in entry:
        return "failed"
    number = entry["result"].get(key)
    return "unknown" if number is None else format(number / scale, form)


def result(entry: Results | None) -> Results:
    """Return what a command printed; nothing where it failed or was not run yet."""
    printed: Results = (entry or {}).get("result", {})
    return printed


def peer_value(row: Results, key: str, scale: float = 1.0) -> str:
    """Return one figure of a peer as text; one that is missing or failed says so."""
    return format(row[key] / scale, ",.1f") if row["status"] == "ok" else str(row["status"])


def verdict(entry: Results | None, reported: float) -> str:
    if entry is None:
        return ""
    if "error" in entry:
        return "**not matched**: the command failed"
    ratio = entry["result"]["tokens_per_second"] / reported
    return f"{ratio:,.1f} x" if ratio >= 1 else f"**not matched** ({ratio:.2f} x)"


def speed_part(results: Results) -> list[str]:
    lines = [
        "## Training speed",
        "",
        "| work | tokens/s reported elsewhere | tokens/s here | against the highest | % of peak | memory MB |",
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, run, reported, highest in SPEEDS:
        entry = results.get("runs", {}).get(run)
        figures = [value(entry, "tokens_per_second"), verdict(entry, highest), value(entry, "percent_of_peak")]
        lines.append(f"| {name} | {reported} | {' | '.join(figures)} | {value(entry, 'peak_memory_bytes', 1e6)} |")
    peak = value(results.get("runs", {}).get("wiki-gpt2-float32"), "percent_of_peak")
    lines += [
        "",
        f"Share of the peak: 1.4% of a nominal peak was reported for the first row; here {peak}% of the measured one,"
        " in float32.",
    ]
    return [*lines, "", *commands({run: results.get("runs", {}).get(run) for _, run, _, _ in SPEEDS})]


def memory_part(results: Results) -> list[str]:
    entry, wait = results.get("runs", {}).get("wiki-gpt2-850MB"), results.get("runs", {}).get("wiki-gpt2")
    return [
        "## Memory and data wait",
        "",
        "| what | reported elsewhere | here |",
        "| --- | ---: | ---: |",
        f"| 6 layers x 512 within 850 MB: peak of the process, MB | 850 | {value(entry, 'peak_memory_bytes', 1e6)} |",
        f"| … tokens/s | 54-56 | {value(entry, 'tokens_per_second')} |",
        f"| … data wait | below 5% | {value(wait, 'data_wait_percent', 1, '.3f')}% |",
        "",
        *commands({"budget": entry}),
    ]


def prefetch_part(results: Results) -> list[str]:
    lines = [
        "## Prefetching by size of the corpus",
        "",
        "2 layers x 128, 4 heads, 8 x 128, from raw text, up to two epochs. Reported elsewhere: data",
    ]
    lines += [
        "wait of 30-40% without prefetching, 0.1-0.2% with it; 1,800 and 2,650 tokens/s; hardly a gain below 1,000"
    ]
    lines += [
        "sequences, 20-30% up to 10,000, 40-50% above.",
        "",
        "| corpus, prefetch_batches | tokens/s | data wait |",
        "| --- | ---: | ---: |",
    ]
    for name, entry in results.get("prefetching", {}).items():
        lines.append(
            f"| {name} | {value(entry, 'tokens_per_second')} | {value(entry, 'data_wait_percent', 1, '.3f')}% |"
        )
    return [*lines, "", *commands(dict(list(results.get("prefetching", {}).items())[:1]))]


def characters_part(results: Results) -> list[str]:
    entry = results.get("characters")
    times = {name: entry[name] for name in ("seconds", "user_s", "system_s")} if entry else {}
    whole = {**(entry or {}), "result": {**result(entry), **times}} if entry and "result" in entry else entry
    rows = [
        ("seconds, from the start of the command", "78.6", value(whole, "seconds", 1, ".1f")),
        ("user seconds", "643.0", value(whole, "user_s", 1, ".1f")),
        ("system seconds", "5.6", value(whole, "system_s", 1, ".1f")),
        ("cores used", "8.3", value(whole, "cpu_cores", 1, ".1f")),
        ("memory MB", "210 (estimated there)", value(whole, "peak_memory_bytes", 1e6)),
        ("loss at the start", "5.88", value(whole, "first_loss", 1, ".2f")),
        ("loss at the end", "3.23", value(whole, "train_loss", 1, ".2f")),
        ("validation loss", "none", value(whole, "validation_loss", 1, ".2f")),
    ]
    lines = ["## 1.1 MB of Shakespeare by characters, 1,000 iterations", ""]
    lines += ["4 layers x 128, 8 heads, 32 sequences, learning rate 3e-4.", ""]
    lines += [
        "| what | reported elsewhere | here |",
        "| --- | ---: | ---: |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    for when, key in (("Before", "first_sample"), ("After", "last_sample")):
        if result(entry).get(key):
            lines += ["", f"{when}:", "", "```text", result(entry)[key].replace("```", "..."), "```"]
    return [*lines, "", *commands({"characters": entry})]


def scale_part(results: Results) -> list[str]:
    entry = results.get("scale")
    ways = [way for way in result(entry).get("measured", []) if way["processes"] * way["threads"] == 2]
    best = {"speedup": max((way["speedup"] for way in ways), default=None)}
    here = value({**entry, "result": best} if ways and entry else entry, "speedup", 1, ".2f")
    lines = ["## Two cores against one", "", "| | reported elsewhere | here |", "| --- | ---: | ---: |"]
    return [*lines, f"| speedup | 1.9 | {here} |", "", *commands({"scale": entry})]


def loaders_part(results: Results) -> list[str]:
    loaders, tokenize = results.get("loaders"), results.get("tokenize")
    lines = ["## Loaders and tokenizers", ""]
    lines += [
        "Reported elsewhere: a Grain loader 2-4 times as fast as tf.data, with 30-50% less memory; fast tokenizers"
    ]
    lines += ["3-5 times as fast as slow ones.", "", "| loader | batch | M tokens/s | memory MB |"]
    lines.append("| --- | ---: | ---: | ---: |")
    for size, rows in result(loaders).get("results", {}).items():
        for row in rows:
            speed, memory = peer_value(row, "tokens_per_second", 1e6), peer_value(row, "peak_memory_bytes", 1e6)
            lines.append(f"| {row['peer']} | {size} | {speed} | {memory} |")
    lines += ["", "| tokenizer | MB/s |", "| --- | ---: |"]
    for rows in result(tokenize).get("results", {}).values():
        lines += [f"| {row['peer']} | {peer_value(row, 'megabytes_per_second')} |" for row in rows]
    failed = [name for name, entry in (("loaders", loaders), ("tokenizers", tokenize)) if not result(entry)]
    lines += ["", *(f"No {name}: not measured yet, or failed." for name in failed)]
    return [*lines, "", *commands({"loaders": loaders, "tokenize": tokenize})]


def presets_part(results: Results) -> list[str]:
    lines = [
        "## Presets",
        "",
        "As they are (qwen3, Muon), on 20 MB of text, `shakespeare-char` on its own text and to its own end.",
        "",
    ]
    lines += ["| preset | parameters | tokens/s | % of peak | memory MB | seconds | validation loss | bits per byte |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, entry in results.get("presets", {}).items():
        keys = [
            ("parameters", 1, ",.0f"),
            ("tokens_per_second", 1, ",.0f"),
            ("percent_of_peak", 1, ".0f"),
            ("peak_memory_bytes", 1e6, ",.0f"),
        ]
        keys += [("train_seconds", 1, ".0f"), ("validation_loss", 1, ".3f"), ("validation_bits_per_byte", 1, ".3f")]
        lines.append(f"| `{name}` | {' | '.join(value(entry, *key) for key in keys)} |")
    return [*lines, "", *commands(dict(list(results.get("presets", {}).items())[:1]))]


def commands(entries: dict[str, Results | None]) -> list[str]:
    """Return the commands of some figures as an indented block, without the folders of this run."""
    shown = dict.fromkeys(entry["command"].split(" --out ")[0] for entry in entries.values() if entry)
    return [*(f"    {_without_folder(command)}" for command in shown), ""]


def _without_folder(command: str) -> str:
    return " ".join(word.rpartition("/")[2] if word.startswith("/") else word for word in command.split())


def page(results: Results) -> str:
    """Return the whole page."""
    machine = result(results.get("machine")).get("hardware", {})
    name = f"{machine.get('processor', 'unknown processor')}, {machine.get('cores', 'unknown number of')} cores"
    parts = [speed_part, memory_part, prefetch_part, characters_part, scale_part, loaders_part, presets_part]
    lines = [INTRODUCTION, f"This machine: {name}." if results else "**Not measured yet: run `make results`.**", ""]
    for part in parts:
        lines += part(results)
    return "\n".join([*lines, NOT_MATCHED]).rstrip() + "\n"
