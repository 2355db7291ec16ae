"""An artificial delay of 20 ms in the loader, the optimizer or evaluation: does the breakdown put it where it is?

Teaches: whether "where the time went" can be believed. Each run trains a tiny model; the delayed stage's row must have
grown by the delays (within 10%), the stages must sum to the wall time (within 1%), and the bottleneck must be the stage
that was delayed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpora import write_text

from headrace.perf.breakdown import break_down, find_bottleneck
from headrace.run.config import Layers
from headrace.run.pretraining import Pretraining
from headrace.run.records import Run
from headrace.training.loop import Findings

DELAY_S, NUM_STEPS = 0.02, 150
ROW_TOLERANCE, SUM_TOLERANCE = 0.10, 0.01


class Delayed:
    """A function that is called 20 ms late."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.count = 0

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        until = time.perf_counter() + DELAY_S
        time.sleep(DELAY_S * 0.9)
        while time.perf_counter() < until:  # sleeping alone oversleeps
            pass
        return self._call(*arguments)


class LateBatches:
    """The loader's batches through a delay."""

    def __init__(self, loader: Any) -> None:
        self.late = Delayed(loader.__next__)
        self.state, self.restore = loader.state, loader.restore

    def __next__(self) -> Any:
        return self.late()


def run(text: Path, folder: Path, stage: str) -> tuple[Run, int, float]:
    """Run a training; return its summary, the number of delays it had, and its wall time by our own clock."""
    layers = Layers()
    values = {
        "model.d_model": 32, "model.num_layers": 1, "training.max_length": 32, "training.batch_size": 4,
        "training.micro_batch_size": 4, "training.precision": "float32", "training.matmul": "default",
        "training.attention": "fused",
        "training.max_steps": NUM_STEPS, "training.evaluate_every": 1 if stage == "evaluation" else NUM_STEPS,
        "training.evaluation_tokens": 128, "training.save_every": NUM_STEPS, "data.sources": [str(text)],
        "data.tokenizer": "byte", "data.cache_dir": str(folder / "cache"), "run.out": str(folder / f"{stage}-run"),
    }  # fmt: skip
    layers.add(values, "benchmark")
    with Pretraining(layers.build()) as pretraining:
        late = Delayed(lambda: None)
        if stage == "data wait":
            batches = LateBatches(pretraining.loop._batches)
            pretraining.loop._batches, late = batches, batches.late
        elif stage == "optimizer":
            late = Delayed(pretraining.optimizer.step)
            pretraining.optimizer.step = late  # type: ignore[method-assign]
        elif stage == "evaluation":
            late = Delayed(lambda *_: Findings())
            pretraining._evaluation.evaluate = late  # type: ignore[method-assign]
        steps = iter(pretraining.steps())
        next(steps)  # the first sample comes before the first step, and is not training
        began, first_s = time.perf_counter(), pretraining.loop.position.elapsed_s
        for _ in steps:
            pass
        return pretraining.run, late.count, time.perf_counter() - began + first_s


def main() -> int:
    rows, passed = [], True
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as name:
        folder = Path(name)
        text = write_text(folder / "text.txt", 1_000_000)
        for stage in ("none", "data wait", "optimizer", "evaluation"):
            done, count, wall_s = run(text, folder, stage)
            plain = rows[0]["seconds"].get(stage, 0.0) if rows and stage != "evaluation" else 0.0
            seen = done.seconds.get(stage, 0.0) - plain
            sum_off = abs(sum(done.seconds.values()) / wall_s - 1)
            named = find_bottleneck(break_down(done.seconds), None).name
            row: dict[str, Any] = {"delayed": stage, "seconds": done.seconds, "bottleneck": named, "sum_off": sum_off}
            is_right = sum_off <= SUM_TOLERANCE
            if count:
                row["off"] = seen / (count * DELAY_S) - 1
                is_right &= abs(row["off"]) <= ROW_TOLERANCE and named == stage
            rows.append(row)
            passed &= is_right
            found = f"{seen:.3f} s seen of {count * DELAY_S:.3f} s" if count else "no delay"
            verdict = "ok" if is_right else "WRONG"
            print(f"{stage:12s} {found}; bottleneck: {named}; the sum is off by {100 * sum_off:.2f}%; {verdict}")
    print(json.dumps({"benchmark": "breakdown", "rows": rows, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
