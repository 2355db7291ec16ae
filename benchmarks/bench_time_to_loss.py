"""How soon headrace reaches the loss at which nanoGPT's CPU recipe ends: Shakespeare by characters.

Teaches: what the default recipe is worth in time, not in steps. The baseline is the recipe that people run: GPT-2
shape, 4 layers, 4 heads, 128 wide, no biases, context 64, batch 12, 2,000 steps of AdamW, plain PyTorch, default
allocator. Ours has no more parameters, and its threads wait for each other as they do in `headrace train`. Each side
runs in a process of its own; the clock runs from the first step on. Losses are on the whole validation part (the last
10%).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from headrace.jobs.train import train
from headrace.machine.waiting import wait_briefly
from headrace.models.config import ModelConfig
from headrace.models.network import Network, build

TARGET = 0.125
LOWER = 0.25
"""Nats below the baseline's loss that headrace reaches in the baseline's whole time."""
LENGTH, BATCH, STEPS = 64, 12, 2000


def split(path: str) -> tuple[np.ndarray, np.ndarray, int]:
    text = Path(path).read_text()
    characters = sorted(set(text))
    table = {character: number for number, character in enumerate(characters)}
    tokens = np.array([table[c] for c in text])
    cut = int(0.9 * len(tokens))
    return tokens[:cut], tokens[cut:], len(characters)


def validation_loss(network: Network, tokens: np.ndarray) -> float:
    rows = (len(tokens) - 1) // LENGTH
    total = 0.0
    with torch.no_grad():
        for start in range(0, rows, 64):
            places = np.arange(start, min(start + 64, rows)) * LENGTH
            window = torch.from_numpy(tokens[places[:, None] + np.arange(LENGTH + 1)])
            logits = network.logits(network(window[:, :-1]))
            total += float(cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten(), reduction="sum"))
    return total / (rows * LENGTH)


def baseline(path: str) -> None:
    torch.manual_seed(0)
    train_part, validation_part, vocab = split(path)
    shape = {"d_model": 128, "num_heads": 4, "num_layers": 4, "vocab_size": vocab, "context": LENGTH, "bias": False}
    network = build(ModelConfig(arch="gpt2", **shape))
    decayed = [p for p in network.parameters() if p.dim() == 2]
    plain = [p for p in network.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    rng = np.random.default_rng(0)
    began = time.perf_counter()
    for step in range(STEPS):
        through = max(0.0, (step - 100) / (STEPS - 100))
        rate = 1e-3 * (step + 1) / 100 if step < 100 else 1e-4 + 0.5 * (1 + math.cos(math.pi * through)) * 9e-4
        for group in optimizer.param_groups:
            group["lr"] = rate
        places = rng.integers(0, len(train_part) - LENGTH - 1, BATCH)
        window = torch.from_numpy(train_part[places[:, None] + np.arange(LENGTH + 1)])
        logits = network.logits(network(window[:, :-1]))
        loss = cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    seconds = time.perf_counter() - began
    parameters = sum(p.numel() for p in network.parameters())
    print(json.dumps({"seconds": seconds, "loss": validation_loss(network, validation_part), "parameters": parameters}))


def ours(path: str, **limits: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            **{
                "model.d_model": 128,
                "model.num_heads": 4,
                "model.num_layers": 4,
                "training.max_length": LENGTH,
                "training.batch_size": BATCH,
                "training.evaluate_every": 1_000_000,
                "training.evaluation_tokens": 0,
                **{f"training.{name}": value for name, value in limits.items()},
                "data.sources": [path],
                "data.tokenizer": "char",
                "data.validation_fraction": 0.1,
                "data.cache_dir": f"{folder}/cache",
                "run.out": f"{folder}/run",
            }
        )
    # The evaluation at the end measures the loss, and is not part of reaching it. Everything else counts.
    seconds = run.train_seconds - run.seconds["evaluation"]
    print(json.dumps({"seconds": seconds, "loss": run.validation_loss, "parameters": run.parameters}))


def child(*arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", *arguments]
    environment = dict(os.environ)
    if arguments[0] == "ours":
        wait_briefly(environment)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default=str(Path(__file__).resolve().parents[2] / "shared/data/shakespeare.txt"))
    parser.add_argument("--steps", type=int, default=280)
    parser.add_argument("--child", nargs="+")
    options = parser.parse_args()
    if options.child:
        if options.child[0] == "baseline":
            baseline(options.text)
        else:
            ours(options.text, **{options.child[1]: float(options.child[2])})
        return 0
    theirs = child("baseline")
    mine = child("ours", "max_steps", str(options.steps))
    longer = child("ours", "max_minutes", str(theirs["seconds"] / 60))
    share = mine["seconds"] / theirs["seconds"]
    for name, result in (("baseline", theirs), ("headrace", mine), ("headrace, the whole time", longer)):
        print(f"{name}: {result['loss']:.4f} after {result['seconds']:.1f} s, {result['parameters']:,} parameters")
    passed = mine["loss"] <= theirs["loss"] and share <= TARGET and mine["parameters"] <= theirs["parameters"]
    passed = passed and longer["loss"] <= theirs["loss"] - LOWER
    result = {"benchmark": "time_to_loss", "share_of_time": share, "target": TARGET, "passed": passed}
    print(json.dumps({**result, "baseline": theirs, "headrace": mine, "whole_time": longer}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
