"""What share of a run goes into evaluating, writing text and waiting for saves, with all defaults?

Teaches: whether people wait for training or for what surrounds it. Every preset trains for a minute on 2 MB of text,
and a tiny model for 30 steps. All evaluations together may take 5% of a run; a last one on the whole validation part,
10% by itself; waiting for saves 1%. Around 30 tiny steps, files are synced and two texts are written: that may take a
second. The clock runs from the first step on: starting is measured by another benchmark.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from corpora import write_text

from headrace.run.config import Layers
from headrace.run.presets import PRESETS
from headrace.run.pretraining import Pretraining
from headrace.stages import UPDATING, Stage

MOST_EVALUATING, MOST_LAST, MOST_SAVING = 5.0, 10.0, 1.0
MOST_AROUND_TINY_S = 1.0
TOO_LARGE = ("gpt2-small",)
"""Presets whose single step takes longer than the runs here."""
TINY = {
    "model.d_model": 32, "model.num_layers": 2, "model.num_heads": 2, "training.max_length": 32,
    "training.batch_size": 4, "training.max_steps": 30, "data.tokenizer": "byte",
}  # fmt: skip


def run(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Train with a preset's or the tiny model's settings, and return the shares of the wall time in percent."""
    layers = Layers()
    if name in PRESETS:
        layers.add(PRESETS[name](), name)
    layers.add(values, "benchmark")
    with Pretraining(layers.build()) as pretraining:
        text_s = _time_texts(pretraining)
        began = time.perf_counter()
        infos = list(pretraining.steps())
        wall_s = time.perf_counter() - began
    evaluating = [info.seconds[Stage.EVALUATION] for info in infos]
    updating_s = sum(info.seconds.get(stage, 0.0) for info in infos for stage in UPDATING)
    done = pretraining.run
    return {
        "run": name,
        "steps": done.steps,
        "wall_s": wall_s,
        "updating_s": updating_s,
        "evaluations": sum(info.evaluation is not None for info in infos),
        "evaluating_percent": 100 * sum(evaluating[:-1]) / wall_s,
        "last_evaluation_percent": 100 * evaluating[-1] / wall_s,
        "last_is_whole": done.validation_is_whole,
        "text_percent": 100 * sum(text_s) / wall_s,
        "saving_percent": 100 * done.seconds[Stage.SAVING] / wall_s,
        "around_s": wall_s - updating_s,
        "taken_by_others_percent": done.processor_taken_percent,
    }


def _time_texts(pretraining: Pretraining) -> list[float]:
    """Return a list that gets the seconds of every text that the run writes."""
    seconds: list[float] = []
    write = pretraining._evaluation._write

    def timed(*arguments: Any) -> str:
        began = time.perf_counter()
        text = write(*arguments)
        seconds.append(time.perf_counter() - began)
        return text

    pretraining._evaluation._write = timed  # type: ignore[method-assign]
    return seconds


def is_within(row: dict[str, Any]) -> bool:
    """Return whether a run keeps the limits."""
    if row["run"] == "tiny":
        return bool(row["around_s"] <= MOST_AROUND_TINY_S)
    evaluating, last = row["evaluating_percent"], row["last_evaluation_percent"]
    is_fine = evaluating <= MOST_EVALUATING and last <= MOST_LAST and row["saving_percent"] <= MOST_SAVING
    return bool(is_fine and (row["last_is_whole"] or evaluating + last <= MOST_EVALUATING))


def describe(row: dict[str, Any]) -> str:
    """Return a line for a person."""
    part = "the whole part" if row["last_is_whole"] else "a sample"
    return (
        f"{row['run']:17s} {row['steps']:6,} steps in {row['wall_s']:6.1f} s: evaluating"
        f" {row['evaluating_percent']:.1f}%, at the end {row['last_evaluation_percent']:.1f}% on {part}, texts"
        f" {row['text_percent']:.1f}%, waiting for saves {row['saving_percent']:.2f}%;"
        f" {'ok' if row['passed'] else 'MISSED'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of each run that is limited by time")
    parser.add_argument("--presets", nargs="*", default=[name for name in PRESETS if name not in TOO_LARGE])
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as name:
        folder = Path(name)
        text = write_text(folder / "text.txt", 2_000_000)
        cases: list[tuple[str, dict[str, Any]]] = [("tiny", TINY)]
        limit = {"training.max_minutes": options.minutes, "training.max_steps": 0}
        cases += [(preset, limit) for preset in options.presets]
        for number, (case, limits) in enumerate(cases):
            values = {"data.sources": [str(text)], "run.out": str(folder / f"run-{number}"), **limits}
            row = run(case, values)
            row["passed"] = is_within(row)
            rows.append(row)
            print(describe(row), flush=True)
    passed = all(row["passed"] for row in rows)
    print(json.dumps({"benchmark": "whole_run", "rows": rows, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
