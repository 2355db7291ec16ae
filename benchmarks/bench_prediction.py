"""What `headrace plan` predicts against what training then does: tokens/s and peak memory of eleven configs.

Teaches: how well a rehearsal of a few seconds predicts a run, in float32 and in bfloat16. None of the configs was used
to develop the prediction. Each side runs in a process of its own; they take turns, and the median pair counts. Training
goes to its end, with an evaluation, a sample and a checkpoint, which count for memory; tokens/s are those of steps
after the first two. It takes about ten minutes, and with `--threads 1` it suffers less from noise.
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
from headrace.run.config import Config, Layers

SPEED_TOLERANCE, SPEED_MISSES = 0.15, 1 / 8  # the share of configs that may miss it
MEMORY_TOLERANCE = 0.12
PREDICTION_SECONDS = 5.0
WARM_STEPS, LEAST_STEPS, MOST_STEPS, MEASURE_SECONDS = 2, 3, 60, 6.0
EVALUATION_TOKENS = 2000

# arch, width, feed-forward width (0: by the width), layers, vocabulary, length, batch, micro-batch (0: training chooses
# by measurement), precision
CONFIGS = {
    "half-million": ("qwen3", 64, 0, 5, 3000, 96, 48, 24, "float32"),
    "deep": ("qwen3", 128, 0, 10, 2000, 160, 12, 0, "float32"),
    "long": ("gpt2", 192, 0, 4, 6000, 512, 6, 3, "float32"),
    "small batch": ("qwen3", 384, 0, 3, 4096, 128, 4, 4, "float32"),
    "middling": ("gpt2", 320, 0, 5, 10000, 192, 16, 0, "float32"),
    "vocabulary": ("qwen3", 256, 0, 2, 32000, 64, 64, 16, "float32"),
    "thirty-million": ("qwen3", 512, 0, 8, 12000, 256, 8, 4, "float32"),
    "sixty-million": ("gpt2", 704, 0, 7, 24000, 128, 8, 0, "float32"),
    "deep-bf16": ("qwen3", 128, 0, 10, 2000, 160, 12, 0, "bfloat16"),
    "wiki-bf16": ("qwen3", 512, 2048, 6, 16000, 256, 16, 0, "bfloat16"),
    "sixty-bf16": ("gpt2", 704, 0, 7, 24000, 128, 8, 4, "bfloat16"),
}


def make_config(name: str, out: Path, threads: int, num_steps: int = MOST_STEPS) -> Config:
    arch, width, feed_forward, layers, vocab, length, batch, micro, precision = CONFIGS[name]
    values: dict[str, Any] = {
        "model.arch": arch, "model.d_model": width, "model.d_ff": feed_forward, "model.num_layers": layers,
        "model.vocab_size": vocab,
        "training.max_length": length, "training.batch_size": batch, "training.micro_batch_size": micro,
        "training.precision": precision, "training.max_steps": num_steps, "training.evaluate_every": num_steps,
        "training.evaluation_tokens": EVALUATION_TOKENS, "training.threads": threads, "training.save_every": num_steps,
        "data.sources": [str(out / "text.txt")], "data.tokenizer": "byte", "data.cache_dir": str(out / "cache"),
        "run.out": tempfile.mkdtemp(prefix=name, dir=out),
    }  # fmt: skip
    stack = Layers()
    stack.add(values, "benchmark")
    return stack.build()


def predict(config: Config) -> dict[str, float]:
    from headrace.jobs.plan import plan
    from headrace.run.machine import know_machine

    know_machine()
    began = time.perf_counter()
    found = plan(config)
    assert found.tokens_per_second is not None
    seconds = time.perf_counter() - began
    return {"tokens_per_second": found.tokens_per_second, "memory_bytes": found.memory.total, "seconds": seconds}


def train(config: Config) -> dict[str, float]:
    from headrace.machine.facts import peak_memory_bytes
    from headrace.run.pretraining import Pretraining

    with Pretraining(config) as pretraining:
        times = [info.update_s for info in pretraining.steps()]
    training = config.training
    step_s = statistics.median(times[WARM_STEPS:])
    return {
        "tokens_per_second": training.tokens_per_update / step_s,
        "memory_bytes": peak_memory_bytes(),
    }


def in_own_process(job: str, name: str, folder: Path, threads: int, num_steps: int = MOST_STEPS) -> dict[str, float]:
    options = {"--job": job, "--name": name, "--folder": folder, "--threads": threads, "--steps": num_steps}
    command = [sys.executable, __file__, *(str(text) for option in options.items() for text in option)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=3, help="of prediction and training for each config; odd")
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--job", choices=["predict", "train"])
    parser.add_argument("--name")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--steps", type=int, default=MOST_STEPS)
    arguments = parser.parse_args()
    if arguments.job:
        config = make_config(arguments.name, arguments.folder, arguments.threads, arguments.steps)
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
    passed = (
        len(rows) - speed <= int(SPEED_MISSES * len(rows)) and memory == len(rows) and slowest <= PREDICTION_SECONDS
    )
    print(json.dumps({"rows": rows, "speed_within": speed, "memory_within": memory, "passed": passed}))
    return 0 if passed else 1


def compare(name: str, folder: Path, threads: int, num_pairs: int) -> dict[str, Any]:
    config = make_config(name, folder, threads)
    model, training = config.model, config.training
    model.context = training.sequence_length
    pairs = []
    for _ in range(num_pairs):
        predicted = in_own_process("predict", name, folder, threads)
        quick = int(MEASURE_SECONDS * predicted["tokens_per_second"] / training.tokens_per_update)
        num_steps = WARM_STEPS + max(LEAST_STEPS, min(MOST_STEPS, quick))
        pairs.append((predicted, in_own_process("train", name, folder, threads, num_steps)))
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
