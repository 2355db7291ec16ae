"""Tokens per second of headrace's step against a plain PyTorch loop on the same model, and against the machine's peak.

Teaches: what allocation, micro-batches, the chunked head and measured kernels are worth at equal arithmetic (GPT-2's
shape, AdamW). The plain loop is what people write: PyTorch's layers, the whole batch, `cross_entropy` on full logits,
torch's DataLoader, the default allocator; of its float32 and its bfloat16 autocast, the faster counts. Sides alternate,
each in a process of its own (its allocator is set once); medians of ratios. With `--threads 1` the
processor time of the thread that trains counts, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import torch
from corpora import write_text
from plain_gpt2 import PlainGPT2
from torch.nn.functional import cross_entropy

import headrace as hr
from headrace.distributed.replicas import Replica
from headrace.machine.allocator import keep_freed_memory
from headrace.machine.peak import measure_peak_flops
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.network import build
from headrace.run.config import Layers
from headrace.run.presets import PRESETS
from headrace.training.autotune import choose_execution
from headrace.training.config import TrainingConfig
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.step import TrainStep

TARGETS = {"wiki": 1.45, "prototype": 1.6, "development": 1.6, "demo": 1.6, "shakespeare-char": 1.6}
PEAK_TARGETS = {"bfloat16": 66.0, "float32": 72.0}
"""Percent of the measured peak of each precision that `wiki` should reach in it."""
NUM_STEPS = {"wiki": 3}


def shape(preset: str, vocab_size: int) -> tuple[ModelConfig, int, int]:
    layers = Layers()
    layers.add(PRESETS[preset](), preset)
    config = layers.build()
    model, training = config.model, config.training
    model.arch = "gpt2"
    model.context = training.sequence_length
    model.vocab_size = model.vocab_size or vocab_size
    return model, training.batch_size, training.sequence_length


class Rows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, tokens: np.ndarray, length: int) -> None:
        self._tokens, self._length = tokens, length

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.from_numpy(self._tokens[index * self._length : (index + 1) * self._length + 1].astype(np.int64))
        return row[:-1], row[1:]


def plain(preset: str, cache: hr.Cache, precision: str) -> float:
    model, batch_size, length = shape(preset, cache.tokenizer.vocab_size)
    tokens = np.concatenate([np.concatenate(list(cache.tokens(i, 0, 1 << 40))) for i in range(len(cache.segments))])
    network = PlainGPT2(model)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    loader = iter(torch.utils.data.DataLoader(Rows(tokens, length), batch_size=batch_size, shuffle=True, num_workers=1))

    def step() -> None:
        inputs, targets = next(loader)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            loss = cross_entropy(network(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    return timed(step, preset, batch_size * length)


def ours(preset: str, cache: hr.Cache, precision: str) -> float:
    keep_freed_memory()
    model, batch_size, length = shape(preset, cache.tokenizer.vocab_size)
    network = build(model)
    optimizer = Optimizer(network, TrainingConfig(optimizer="adamw", learning_rate=1e-4))
    with hr.Loader(cache, batch_size, length) as loader:
        training = TrainingConfig.model_validate(
            {"batch_size": batch_size, "max_length": length, "precision": precision}
        )
        execution = choose_execution(network, next(loader), training)
        print(execution)
        train_step = TrainStep(Replica(network), optimizer, execution, 1.0)
        return timed(lambda: train_step(next(loader), 1.0), preset, batch_size * length)


def timed(step: object, preset: str, tokens: int) -> float:
    assert callable(step)
    step()
    step()
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds = []
    for _ in range(NUM_STEPS.get(preset, 10)):
        began = clock()
        step()
        seconds.append(clock() - began)
    return tokens / statistics.median(seconds)


def child(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--child", *arguments], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_child(side: str, preset: str, cache_path: str, precision: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    speed = (plain if side == "plain" else ours)(preset, hr.Cache.open(cache_path), precision)
    peak = measure_peak_flops(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    print(json.dumps({"tokens_per_second": speed, "peak_flops": peak}))


def compare(preset: str, cache: hr.Cache, repeats: int, threads: int) -> dict[str, float]:
    """Run all sides in turns; return medians of the ratio to the better plain loop, and of percents of the peaks."""
    model, _, length = shape(preset, cache.tokenizer.vocab_size)
    flops = count(model, length).training_flops_per_token
    ratios: list[float] = []
    percents: dict[str, list[float]] = {precision: [] for precision in PEAK_TARGETS}
    for _ in range(repeats):
        speeds: dict[str, float] = {}
        for precision, side in product(PEAK_TARGETS, ("plain", "ours")):
            result = child(side, preset, str(cache.path), precision, str(threads))
            speeds[f"{side} {precision}"] = result["tokens_per_second"]
            if side == "ours":
                percents[precision].append(100 * result["tokens_per_second"] * flops / result["peak_flops"])
        best = {side: max(speeds[f"{side} {precision}"] for precision in PEAK_TARGETS) for side in ("plain", "ours")}
        ratios.append(best["ours"] / best["plain"])
        told = ", ".join(f"{side} {speed:,.0f}" for side, speed in speeds.items())
        shares = ", ".join(f"{values[-1]:.0f}% of the {precision} peak" for precision, values in percents.items())
        print(f"{preset}: {told} tok/s: {ratios[-1]:.2f} x, {shares}", flush=True)
    of_peaks = {f"percent_of_{precision}_peak": statistics.median(values) for precision, values in percents.items()}
    return {"ratio": statistics.median(ratios), **of_peaks}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", default=",".join(TARGETS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--child", nargs=5)
    options = parser.parse_args()
    if options.child:
        run_child(*options.child)
        return 0
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as folder:
        text = write_text(Path(folder) / "text.txt", 4_000_000)
        for preset in options.presets.split(","):
            spec = "char" if preset == "shakespeare-char" else f"bpe:{shape(preset, 300)[0].vocab_size}"
            cache = hr.prepare([text], tokenizer=spec, out=Path(folder) / preset)
            results[preset] = compare(preset, cache, options.repeats, options.threads)
    passed = all(result["ratio"] >= TARGETS[preset] for preset, result in results.items())
    for precision, target in PEAK_TARGETS.items() if "wiki" in results else ():
        passed = passed and results["wiki"][f"percent_of_{precision}_peak"] >= target
    targets = {"ratio": TARGETS, "percent_of_peak": PEAK_TARGETS}
    print(json.dumps({"benchmark": "training_speed", "results": results, "targets": targets, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
