"""What `headrace plan` predicts against what training then does: tokens/s and peak memory of eight configs.

Teaches: how far a rehearsal of a few seconds tells the run. None of the configs was used in making the prediction.
Each side runs in a process of its own; they take turns, and the median pair counts. Tokens/s of training are those of
steps after the first few, without evaluation. About seven minutes; `--threads 1` bears noise better.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from corpora import write_text

from headrace.models.counts import count
from headrace.recipes.config import Config, Layers

SPEED_TOLERANCE, SPEED_AT_LEAST = 0.15, 7
MEMORY_TOLERANCE = 0.12
PREDICTION_SECONDS = 5.0
WARM_STEPS, LEAST_STEPS, MOST_STEPS, MEASURE_SECONDS = 2, 3, 60, 6.0

# arch, width, layers, vocabulary, length, batch, micro-batch
CONFIGS = {
    "half-million": ("qwen3", 96, 3, 1500, 64, 64, 32),
    "narrow-deep": ("gpt2", 160, 7, 5000, 96, 20, 10),
    "long": ("qwen3", 224, 3, 3600, 512, 8, 4),
    "wide-shallow": ("gpt2", 448, 2, 8192, 96, 24, 12),
    "middling": ("qwen3", 320, 6, 8192, 256, 8, 4),
    "vocabulary": ("gpt2", 288, 3, 20000, 128, 16, 8),
    "twenty-million": ("qwen3", 448, 7, 9000, 192, 8, 4),
    "sixty-million": ("gpt2", 640, 8, 28000, 256, 4, 4),
}


def make_config(name: str, corpus: Path, out: Path, threads: int) -> Config:
    arch, width, layers, vocab, length, batch, micro = CONFIGS[name]
    values: dict[str, Any] = {
        "model.arch": arch, "model.d_model": width, "model.num_layers": layers, "model.vocab_size": vocab,
        "training.max_length": length, "training.batch_size": batch, "training.micro_batch_size": micro,
        "training.precision": "float32", "training.max_steps": MOST_STEPS, "training.evaluate_every": MOST_STEPS + 1,
        "training.threads": threads, "training.save_every": MOST_STEPS + 1, "data.sources": [str(corpus)],
        "data.tokenizer": "byte", "data.cache_dir": str(out / "cache"), "data.validation_fraction": 0.0,
        "run.out": tempfile.mkdtemp(prefix=name, dir=out),
    }  # fmt: skip
    stack = Layers()
    stack.add(values, "benchmark")
    return stack.build()


def predict(config: Config) -> dict[str, float]:
    from headrace.recipes.machine import know_machine
    from headrace.recipes.plan import plan

    know_machine()
    began = time.perf_counter()
    found = plan(config)
    assert found.tokens_per_second is not None
    seconds = time.perf_counter() - began
    return {"tokens_per_second": found.tokens_per_second, "memory_bytes": found.memory.total, "seconds": seconds}


def train(config: Config) -> dict[str, float]:
    """Steps until they have taken long enough; the run is left before its end, which would evaluate and save."""
    from headrace.machine.facts import peak_memory_bytes
    from headrace.recipes.pretrain import Pretraining

    times: list[float] = []
    with Pretraining(config) as pretraining:
        for info in pretraining.steps():
            times.append(info.step_s)
            if len(times) >= WARM_STEPS + LEAST_STEPS and sum(times[WARM_STEPS:]) > MEASURE_SECONDS:
                break
    training = config.training
    step_s = statistics.median(times[WARM_STEPS:])
    return {
        "tokens_per_second": training.batch_size * training.max_length / step_s,
        "memory_bytes": peak_memory_bytes(),
    }


def in_own_process(job: str, name: str, folder: Path, threads: int) -> dict[str, float]:
    options = {"--job": job, "--name": name, "--folder": str(folder), "--threads": str(threads)}
    command = [sys.executable, __file__, *(text for option in options.items() for text in option)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=3, help="of prediction and training, for each config")
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--job", choices=["predict", "train"])
    parser.add_argument("--name")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.job:
        config = make_config(arguments.name, arguments.folder / "text.txt", arguments.folder, arguments.threads)
        print(json.dumps(predict(config) if arguments.job == "predict" else train(config)))
        return 0
    names = arguments.only.split(",") if arguments.only else list(CONFIGS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_text(folder / "text.txt", 4 << 20)
        print("predicted / measured")
        print(f"{'config':<16} {'parameters':>10} {'tokens/s':>18} {'off':>6} {'memory':>14} {'off':>6} {'took':>6}")
        rows = [compare(name, folder, arguments.threads, arguments.pairs) for name in names]
    speed = sum(abs(row["tokens_per_second_error"]) <= SPEED_TOLERANCE for row in rows)
    memory = sum(abs(row["memory_bytes_error"]) <= MEMORY_TOLERANCE for row in rows)
    slowest = max(row["prediction_s"] for row in rows)
    print(f"within {SPEED_TOLERANCE:.0%} in speed: {speed} of {len(rows)}; {MEMORY_TOLERANCE:.0%} in memory: {memory}")
    passed = speed >= min(SPEED_AT_LEAST, len(rows)) and memory == len(rows) and slowest <= PREDICTION_SECONDS
    print(json.dumps({"rows": rows, "speed_within": speed, "memory_within": memory, "passed": passed}))
    return 0 if passed else 1


def compare(name: str, folder: Path, threads: int, num_pairs: int) -> dict[str, Any]:
    pairs = [[in_own_process(job, name, folder, threads) for job in ("predict", "train")] for _ in range(num_pairs)]
    model = make_config(name, folder / "text.txt", folder, threads).model
    model.context = CONFIGS[name][4]
    row: dict[str, Any] = {"config": name, "parameters": count(model, model.context).num_parameters}
    for value in ("tokens_per_second", "memory_bytes"):
        errors = [predicted[value] / measured[value] - 1 for predicted, measured in pairs]
        middle = errors.index(statistics.median_low(errors))
        row[f"predicted_{value}"], row[f"measured_{value}"] = (side[value] for side in pairs[middle])
        row[f"{value}_error"] = errors[middle]
    row["prediction_s"] = statistics.median(predicted["seconds"] for predicted, _ in pairs)
    print(
        f"{name:<16} {row['parameters'] / 1e6:>9.1f}M {row['predicted_tokens_per_second']:>8,.0f} /"
        f"{row['measured_tokens_per_second']:>8,.0f} {row['tokens_per_second_error']:>+6.0%}"
        f" {row['predicted_memory_bytes'] / 2**20:>6,.0f} /{row['measured_memory_bytes'] / 2**20:>5,.0f}M"
        f" {row['memory_bytes_error']:>+6.0%} {row['prediction_s']:>5.1f}s",
        flush=True,
    )
    return row


if __name__ == "__main__":
    sys.exit(main())
