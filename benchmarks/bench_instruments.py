"""What the instruments cost: training with all of them on against the same steps with none.

Teaches: whether measuring slows what is measured. One side is `headrace train` as people run it with everything on
(timers, metrics.jsonl, gauges, TensorBoard, the live display drawing to a terminal); the other takes the same steps on
the same network with the bare step. They take turns of a few steps. The shape is small, so that the share is large.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from corpora import write_text
from rich.console import Console

from headrace.cli import progress
from headrace.distributed.replicas import Replica
from headrace.run.config import Layers
from headrace.run.presets import PRESETS
from headrace.run.pretraining import Pretraining
from headrace.training.step import TrainStep

TARGET = 0.99
TURN = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="prototype", choices=sorted(PRESETS))
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    progress.err = Console(file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as name:
        folder = Path(name)
        layers = Layers()
        layers.add(PRESETS[options.preset](), options.preset)
        num_steps = (options.turns + 2) * TURN
        own = {
            "data.sources": [str(write_text(folder / "text.txt", 4_000_000))], "run.out": str(folder / "run"),
            "data.cache_dir": str(folder / "cache"), "run.tensorboard": True, "training.max_steps": num_steps,
            "training.evaluate_every": num_steps, "training.save_every": num_steps,
        }  # fmt: skip
        layers.add(own, "benchmark")
        seconds: dict[str, list[float]] = {"on": [], "off": []}
        with Pretraining(layers.build()) as run, progress.TrainingDisplay(run) as shown:
            bare = TrainStep(Replica(run.network), run.optimizer, run.execution, run.config.training.gradient_clip)
            batches, steps = iter(run.loader), iter(run.steps())
            shown.update(next(steps))
            for _ in range(options.turns):
                for _ in range(TURN):
                    began = time.perf_counter()
                    shown.update(next(steps))
                    seconds["on"].append(time.perf_counter() - began)
                for _ in range(TURN):
                    began = time.perf_counter()
                    bare(next(batches), 1.0)
                    seconds["off"].append(time.perf_counter() - began)
    on, off = (statistics.median(seconds[side]) for side in ("on", "off"))
    speed = off / on
    print(f"{1e3 * off:.2f} ms a step without instruments, {1e3 * on:.2f} ms with: {speed:.4f} of the speed")
    passed = speed >= TARGET
    print(json.dumps({"benchmark": "instruments", "speed_ratio": speed, "target": TARGET, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
