"""How long training waits for data, and what it costs to train from raw text.

Teaches: whether the loader is ever the bottleneck. One side trains from raw text that is tokenised while training runs
(no cache exists when it starts; the corpus is about as large as what is trained on, so tokenising has the share that it
has in one epoch); the other takes the same steps on one batch in memory. They take turns of a few steps on the same
network, so that noise hits both; the medians of their steps are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from corpora import write_text

from headrace.data.loader import Loader
from headrace.distributed.replicas import Replica
from headrace.machine.allocator import keep_freed_memory
from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.perf.speed import wait_percent
from headrace.training.autotune import choose_execution
from headrace.training.config import TrainingConfig
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.step import TrainStep

WAIT_TARGET, SPEED_TARGET = 0.2, 0.98
TURN = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--megabytes", type=int, default=2)
    options = parser.parse_args()
    keep_freed_memory()
    training = TrainingConfig(batch_size=32, max_length=128, precision="float32")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as folder:
        text = write_text(Path(folder) / "text.txt", options.megabytes * 1_000_000)
        with Loader([text], 32, 128, tokenizer="bpe:4096", cache_dir=Path(folder) / "cache") as loader:
            vocab_size = loader.cache.tokenizer.vocab_size
            network = build(ModelConfig(d_model=256, num_heads=4, num_layers=3, vocab_size=vocab_size, context=128))
            constant = next(loader)
            execution = choose_execution(network, constant, training)
            step = TrainStep(Replica(network), Optimizer(network, training), execution, training.gradient_clip)
            step(constant, 1.0)
            waits: list[float] = []
            seconds: dict[str, list[float]] = {"raw text": [], "constant batch": []}
            for _ in range(options.turns):
                for side in seconds:
                    for _ in range(TURN):
                        began = time.perf_counter()
                        batch = next(loader) if side == "raw text" else constant
                        waited = time.perf_counter() - began
                        step(batch, 1.0)
                        seconds[side].append(time.perf_counter() - began)
                        if side == "raw text":
                            waits.append(wait_percent(waited, seconds[side][-1]))
            is_complete = loader.cache.is_complete
    speed = statistics.median(seconds["constant batch"]) / statistics.median(seconds["raw text"])
    wait = statistics.median(waits)
    print(f"data wait {wait:.3f}% (worst step {max(waits):.2f}%), speed {speed:.3f} of a constant batch")
    print(f"tokenising was {'over before the end' if is_complete else 'still going on at the end'}")
    passed = wait < WAIT_TARGET and speed >= SPEED_TARGET
    result = {"benchmark": "data_wait", "median_wait_percent": wait, "speed_ratio": speed}
    print(json.dumps({**result, "targets": [WAIT_TARGET, SPEED_TARGET], "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
