"""Tokens per second of headrace's step against a plain PyTorch loop on the same model, and against the machine's peak.

Teaches: what allocation, micro-batches and the chunked head are worth at equal arithmetic (float32, AdamW, the same
network). The plain loop is what people write: the whole batch, `cross_entropy` on full logits, torch's DataLoader, the
default allocator. Sides alternate, each in a process of its own (its allocator is set once); medians of ratios.
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

import numpy as np
import torch
from corpora import write_text
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

TARGETS = {"wiki": 1.6, "prototype": 1.2, "development": 1.2, "shakespeare-char": 1.2}
PEAK_TARGET = 80.0
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


def plain(preset: str, cache: hr.Cache) -> float:
    model, batch_size, length = shape(preset, cache.tokenizer.vocab_size)
    tokens = np.concatenate([np.concatenate(list(cache.tokens(i, 0, 1 << 40))) for i in range(len(cache.segments))])
    network = build(model)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    loader = iter(torch.utils.data.DataLoader(Rows(tokens, length), batch_size=batch_size, shuffle=True, num_workers=1))

    def step() -> None:
        inputs, targets = next(loader)
        logits = network.logits(network(inputs))
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    return timed(step, preset, batch_size * length)


def ours(preset: str, cache: hr.Cache) -> float:
    keep_freed_memory()
    model, batch_size, length = shape(preset, cache.tokenizer.vocab_size)
    network = build(model)
    optimizer = Optimizer(network, TrainingConfig(optimizer="adamw", learning_rate=1e-4))
    with hr.Loader(cache, batch_size, length) as loader:
        training = TrainingConfig(batch_size=batch_size, max_length=length, precision="float32")
        execution = choose_execution(network, next(loader), training)
        print(execution)
        train_step = TrainStep(Replica(network), optimizer, execution, 1.0)
        return timed(lambda: train_step(next(loader), 1.0), preset, batch_size * length)


def timed(step: object, preset: str, tokens: int) -> float:
    assert callable(step)
    step()
    step()
    repeats = NUM_STEPS.get(preset, 10)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return tokens / statistics.median(seconds)


def child(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--child", *arguments], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", default=",".join(TARGETS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        side, preset, cache_path = options.child
        cache = hr.Cache.open(cache_path)
        speed = (plain if side == "plain" else ours)(preset, cache)
        print(json.dumps({"tokens_per_second": speed, "peak_flops": measure_peak_flops()}))
        return 0
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as folder:
        text = write_text(Path(folder) / "text.txt", 4_000_000)
        for preset in options.presets.split(","):
            model, _, length = shape(preset, 300)
            spec = "char" if preset == "shakespeare-char" else f"bpe:{model.vocab_size}"
            cache = hr.prepare([text], tokenizer=spec, out=Path(folder) / preset)
            flops = count(shape(preset, cache.tokenizer.vocab_size)[0], length).training_flops_per_token
            ratios, percents = [], []
            for _ in range(options.repeats):
                theirs, mine = (child(side, preset, str(cache.path)) for side in ("plain", "ours"))
                ratios.append(mine["tokens_per_second"] / theirs["tokens_per_second"])
                peak = max(mine["peak_flops"], theirs["peak_flops"])
                percents.append(100 * mine["tokens_per_second"] * flops / peak)
                print(
                    f"{preset}: plain {theirs['tokens_per_second']:,.0f} tok/s, headrace"
                    f" {mine['tokens_per_second']:,.0f} tok/s: {ratios[-1]:.2f} x, {percents[-1]:.0f}% of peak",
                    flush=True,
                )
            results[preset] = {"ratio": statistics.median(ratios), "percent_of_peak": statistics.median(percents)}
    passed = all(result["ratio"] >= TARGETS[preset] for preset, result in results.items())
    passed = passed and results.get("wiki", {"percent_of_peak": 0.0})["percent_of_peak"] >= PEAK_TARGET
    print(json.dumps({"benchmark": "training_speed", "results": results, "targets": TARGETS, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
