"""Seconds of Muon's update of all matrices, against the algorithm that headrace had before.

Teaches: what bfloat16, three or four tuned iterations instead of five, larger batches of matrices and the native
library are worth, on the real shapes. Before: five iterations of one polynomial in float32. All sides take turns in one
process and see the same gradients; medians. On a machine that does not multiply bfloat16 faster than float32, the new
side is timed in float32 only, and the targets do not apply. `--loss` trains `shakespeare-char` with both sides for
equal steps with three seeds each, which takes some minutes: the mean losses must not differ by more than the seeds of
the old side do.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brief_waits  # noqa: F401 - before torch
import torch
from corpora import write_text
from torch import Tensor

import headrace as hr
from headrace.distributed.group import ALONE, Group
from headrace.machine.allocator import keep_freed_memory
from headrace.models.network import Network, build
from headrace.native.library import why_missing
from headrace.run.config import Layers
from headrace.run.presets import PRESETS
from headrace.training.config import TrainingConfig
from headrace.training.execution import PLAINEST, Execution
from headrace.training.optimizers import assignment
from headrace.training.optimizers.assignment import assign
from headrace.training.optimizers.muon import Muon
from headrace.training.optimizers.rule import Rule

TARGETS = {"wiki": 3.0, "shakespeare-char": 2.0}
REPEATS = {"wiki": 5, "shakespeare-char": 41}
WAYS = {
    "float32": Execution(1),
    "native float32": Execution(1, engine="native"),
    "bfloat16": Execution(1, precision="bfloat16"),
    "native bfloat16": Execution(1, precision="bfloat16", engine="native"),
}
SEEDS = (0, 1, 2)


class Before(Rule):
    """Muon as it was: commit 73c484c."""

    averages = ("momentum",)

    @torch.no_grad()
    def step(self, learning_rate: float, execution: Execution = PLAINEST, group: Group = ALONE) -> None:
        alike: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for parameter in self.parameters:
            alike[self.stacked.get(parameter, 1), *parameter.shape].append(parameter)
        for (stacked, *shape), parameters in alike.items():
            at_once = max(1, (1 << 20) // math.prod(shape))
            for start in range(0, len(parameters), at_once):
                self._update(parameters[start : start + at_once], stacked, learning_rate)

    def _update(self, parameters: list[Tensor], stacked: int, learning_rate: float) -> None:
        matrices = torch.stack([self._look_ahead(parameter) for parameter in parameters]).float()
        rows, columns = matrices.shape[1] // stacked, matrices.shape[2]
        updates = orthogonalise_before(matrices.view(-1, rows, columns)).reshape(matrices.shape)
        size = 0.2 * max(rows, columns) ** 0.5
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1 - learning_rate * self.weight_decay)
            parameter.add_(update, alpha=-learning_rate * size)

    def _look_ahead(self, parameter: Tensor) -> Tensor:
        assert parameter.grad is not None
        if parameter not in self.state:
            self.state[parameter] = {"momentum": torch.zeros_like(parameter)}
        momentum = self.state[parameter]["momentum"]
        momentum.lerp_(parameter.grad, 1 - self.config.momentum)
        return parameter.grad.lerp(momentum, self.config.momentum)

    @staticmethod
    def update_flops(rows: int, columns: int, dtype: torch.dtype) -> int:
        short, long = sorted((rows, columns))
        return 5 * (2 * 2 * short * short * long + 2 * short**3)


def orthogonalise_before(matrices: Tensor) -> Tensor:
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def network_of(preset: str) -> Network:
    layers = Layers()
    layers.add(PRESETS[preset](), preset)
    config = layers.build()
    config.model.context = config.training.sequence_length
    config.model.vocab_size = config.model.vocab_size or 65
    return build(config.model)


def compare_speed(preset: str, ways: list[str], clock: Callable[[], float]) -> dict[str, Any]:
    """Time updates of the matrices by each side in turns, and return medians."""
    network = network_of(preset)
    after = assign(network, TrainingConfig(optimizer="muon"))[-1]
    before = Before(after.parameters, after.config, after.weight_decay, after.stacked)
    generator = torch.Generator().manual_seed(0)
    for parameter in after.parameters:
        parameter.grad = 1e-3 * torch.randn(parameter.shape, generator=generator)
    sides: dict[str, Callable[[], None]] = {"before": lambda: before.step(1e-4)}
    for way in ways:
        sides[way] = lambda execution=WAYS[way]: after.step(1e-4, execution)  # type: ignore[misc]
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for step in sides.values():
        step()
    for _ in range(REPEATS[preset]):
        for side, step in sides.items():
            began = clock()
            step()
            seconds[side].append(clock() - began)
    median = {side: statistics.median(values) for side, values in seconds.items()}
    ratios = {way: round(median["before"] / median[way], 2) for way in ways}
    print(
        f"{preset}: " + ", ".join(f"{side} {1e3 * value:.1f} ms" for side, value in median.items()), ratios, flush=True
    )
    return {
        "seconds": median,
        "ratios": ratios,
        "target": TARGETS[preset],
        "ratio": min(ratios[way] for way in ways if WAYS[way].precision == WAYS[ways[-1]].precision),
    }


def final_loss(text: Path, seed: int, rule: type[Rule], precision: str, num_steps: int, folder: Path) -> float:
    values = PRESETS["shakespeare-char"]()
    values["training"] |= {"seed": seed, "precision": precision, "max_steps": num_steps, "micro_batch_size": 12}
    values["training"] |= {"matmul": "default", "evaluate_every": num_steps, "save_every": num_steps}
    values["data"]["sources"] = [str(text)]
    values["run"] = {"out": str(folder / f"{rule.__name__}-{seed}")}
    assignment.RULES["muon"] = rule
    loss = hr.train(values).validation_loss
    assert loss is not None
    print(f"{rule.__name__}, seed {seed}: validation loss {loss:.4f}", flush=True)
    return loss


def compare_loss(text: Path | None, precision: str, num_steps: int) -> dict[str, Any]:
    """Train with both rules, everything else equal, and return the losses by seed."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        text = text or write_text(folder / "text.txt", 1_000_000)
        losses: dict[str, list[float]] = {"before": [], "after": []}
        for seed in SEEDS:
            losses["before"].append(final_loss(text, seed, Before, precision, num_steps, folder))
            losses["after"].append(final_loss(text, seed, Muon, precision, num_steps, folder))
    return {**losses, "steps": num_steps, "precision": precision, "is_equal": is_equal(**losses)}


def is_equal(before: list[float], after: list[float]) -> bool:
    """Return whether the mean losses differ by no more than the seeds of the old side do."""
    return statistics.mean(after) - statistics.mean(before) <= max(before) - min(before)


def multiplies_bfloat16_fast() -> bool:
    """Return whether a bfloat16 product is clearly faster than a float32 one."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(512, 512).to(dtype)
        times = []
        for _ in range(9):
            began = time.perf_counter()
            x @ x
            times.append(time.perf_counter() - began)
        seconds[dtype] = min(times)
    return seconds[torch.bfloat16] < 0.8 * seconds[torch.float32]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", default=",".join(TARGETS))
    parser.add_argument("--threads", type=int, default=0, help="threads of both sides; 0: as many as PyTorch takes")
    parser.add_argument(
        "--cpu-time", action="store_true", help="count the process's processor time: for a busy machine"
    )
    parser.add_argument("--loss", action="store_true", help="train with both sides, three seeds each")
    parser.add_argument("--text", type=Path, help="text to train on with --loss")
    parser.add_argument("--steps", type=int, default=400, help="updates of each run with --loss")
    options = parser.parse_args()
    keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    is_fast = multiplies_bfloat16_fast()
    ways = [
        way
        for way, execution in WAYS.items()
        if (is_fast or execution.precision == "float32") and not (execution.engine == "native" and why_missing())
    ]
    clock = time.process_time if options.cpu_time else time.perf_counter
    results = {preset: compare_speed(preset, ways, clock) for preset in options.presets.split(",") if preset}
    passed = not is_fast or all(result["ratio"] >= result["target"] for result in results.values())
    answer: dict[str, Any] = {"benchmark": "muon", "bfloat16_is_fast": is_fast, "results": results}
    if options.loss:
        answer["loss"] = compare_loss(options.text, WAYS[ways[-1]].precision, options.steps)
        passed = passed and answer["loss"]["is_equal"]
    print(json.dumps({**answer, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
