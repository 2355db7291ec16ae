"""Native passes against PyTorch's on the same network: both ways of headrace, and a plain loop; cores, company, memory.

Teaches: what it is worth that every thread computes whole sequences, with nothing between the products (GPT-2's shape).
Forward and backward passes count, without the optimizer, which is the same for all. Sides take turns in one process,
medians of ratios; the plain loop (PyTorch's layers, `cross_entropy` on full logits, the whole batch) profits from
headrace's setting of the allocator here. The second process that takes a core does nothing but count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import brief_waits  # noqa: F401 - before torch
import torch
from plain_gpt2 import PlainGPT2
from torch.nn.functional import cross_entropy

from headrace.distributed.replicas import Replica
from headrace.instruments.rehearsal import random_batch
from headrace.machine.allocator import keep_freed_memory
from headrace.machine.facts import memory_bytes, peak_memory_bytes
from headrace.models.network import build
from headrace.run.config import Config, Layers
from headrace.run.memory import count_memory
from headrace.run.presets import PRESETS
from headrace.training.execution import Execution
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.step import TrainStep, accumulate
from headrace.training.ways.alternatives import default_micro_batch

PRECISIONS = ("float32", "bfloat16")
TO_TORCH = {
    "shakespeare-char": {"float32": 1.4, "bfloat16": 1.4},
    "prototype": {"float32": 1.4, "bfloat16": 1.4},
    "wiki": {"float32": 1.1, "bfloat16": 1.0},
}
TO_PLAIN = {"shakespeare-char": 2.2, "prototype": 2.2}
SECOND_CORE, BESIDE_OTHERS, MOST_MEGABYTES, PREDICTED_PERCENT = 1.95, 3.0, 900, 5.0
NUM_ROUNDS = {"wiki": 5}
Sides = dict[str, Callable[[], object]]


def shape(preset: str) -> Config:
    layers = Layers()
    layers.add(PRESETS[preset](), preset)
    config = layers.build()
    config.model.arch, config.training.optimizer = "gpt2", "adamw"
    config.model.context = config.training.sequence_length
    config.model.vocab_size = config.model.vocab_size or 65
    return config


def in_turns(sides: Sides, rounds: int, passes_a_turn: int = 1) -> dict[str, list[float]]:
    """Return the seconds of all sides, taken in turns after one round that pays for fresh memory.

    Of several passes in a row, the median counts.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, compute in sides.items():
            taken = []
            for _ in range(passes_a_turn):
                began = time.perf_counter()
                compute()
                taken.append(time.perf_counter() - began)
            if number:
                seconds[name].append(statistics.median(taken))
    return seconds


def ratio(seconds: dict[str, list[float]], slow: list[str], fast: list[str]) -> float:
    """Return the median over rounds of the fastest of some sides to the fastest of others."""
    rounds = range(len(next(iter(seconds.values()))))
    return statistics.median(min(seconds[s][i] for s in slow) / min(seconds[f][i] for f in fast) for i in rounds)


def passes(preset: str, executions: dict[str, Execution], with_plain: bool = False) -> Sides:
    """Return the sides: passes over one batch in several ways, and by the plain loop in both precisions."""
    config = shape(preset)
    length, size = config.training.sequence_length, config.training.batch_size
    batch = random_batch(config.model, size, length)
    network = build(config.model)
    plain = PlainGPT2(config.model)
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)

    def ours(execution: Execution) -> Callable[[], object]:
        replica = Replica(network)

        def compute() -> None:
            execution.set_threads()
            accumulate(replica, batch, execution)
            network.zero_grad()

        return compute

    def theirs(precision: str) -> Callable[[], object]:
        def compute() -> None:
            torch.set_num_threads(THREADS)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
                loss = cross_entropy(plain(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            plain.zero_grad()

        return compute

    sides = {name: ours(execution) for name, execution in executions.items()}
    return sides | ({f"plain {precision}": theirs(precision) for precision in PRECISIONS} if with_plain else {})


def torch_ways(preset: str, precision: str) -> dict[str, Execution]:
    training = shape(preset).training
    size = default_micro_batch(training.batch_size, training.sequence_length)
    matmuls = ("default", "onednn") if precision == "float32" else ("default",)
    return {
        f"torch {precision} {matmul} {attention}": Execution(
            size, precision, matmul, threads=THREADS, attention=attention  # type: ignore[arg-type]
        )
        for matmul in matmuls
        for attention in ("fused", "products")
    }  # fmt: skip


def native_way(preset: str, precision: str, threads: int) -> Execution:
    return Execution(shape(preset).training.batch_size, precision, threads=threads, engine="native")  # type: ignore[arg-type]


def compare(preset: str, rounds: int) -> dict[str, float]:
    """Compare the native way with torch's ways and the plain loop, on all cores and, for wiki too, with one core."""
    results: dict[str, float] = {}
    ways = {f"native {precision}": native_way(preset, precision, THREADS) for precision in PRECISIONS}
    for precision in PRECISIONS:
        ways |= torch_ways(preset, precision)
    seconds = in_turns(passes(preset, ways, with_plain=preset in TO_PLAIN), rounds)
    for precision in PRECISIONS:
        names = [name for name in seconds if name.startswith(f"torch {precision}")]
        results[f"to_torch_{precision}"] = ratio(seconds, names, [f"native {precision}"])
    if preset in TO_PLAIN:
        plain, native = ([f"{side} {precision}" for precision in PRECISIONS] for side in ("plain", "native"))
        results["to_plain"] = ratio(seconds, plain, native)
    for name in ("native float32", "native bfloat16"):
        results[f"{name} ms"] = 1e3 * statistics.median(seconds[name])
    return results


def compare_cores(preset: str, rounds: int) -> float:
    """Compare one core with all, three passes in a row: a core that slept through one pass begins the next slowly."""
    ways = {str(threads): native_way(preset, "bfloat16", threads) for threads in (1, THREADS)}
    return ratio(in_turns(passes(preset, ways), rounds, passes_a_turn=3), ["1"], [str(THREADS)])


def compare_beside_others(preset: str, rounds: int) -> float:
    """Compare with torch's ways in bfloat16 while another process takes a core."""
    ways = {"native": native_way(preset, "bfloat16", THREADS), **torch_ways(preset, "bfloat16")}
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        seconds = in_turns(passes(preset, ways), rounds)
    finally:
        other.kill()
        other.wait()
    return ratio(seconds, [name for name in ways if name != "native"], ["native"])


def measure_memory() -> dict[str, float]:
    """Measure the most memory of a process that trains wiki, and what is predicted of it beforehand."""
    done = subprocess.run([sys.executable, __file__, "--memory"], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def train_wiki() -> None:
    keep_freed_memory()
    config = shape("wiki")
    execution = native_way("wiki", "bfloat16", THREADS)
    execution.set_threads()
    runtime = memory_bytes()
    network = build(config.model)
    step = TrainStep(Replica(network), Optimizer(network, config.training), execution, 1.0)
    for seed in range(3):
        step(random_batch(config.model, config.training.batch_size, config.training.sequence_length, seed), 1.0)
    peak = peak_memory_bytes()
    predicted = count_memory(config, execution, runtime).total
    print(json.dumps({"peak_megabytes": peak / 1e6, "predicted_percent_off": 100 * abs(predicted / peak - 1)}))


THREADS = torch.get_num_threads()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", default=",".join(TO_TORCH))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.memory:
        train_wiki()
        return 0
    keep_freed_memory()
    results: dict[str, dict[str, float]] = {}
    passed = True
    for preset in options.presets.split(","):
        rounds = min(options.rounds, NUM_ROUNDS.get(preset, options.rounds))
        found = results[preset] = compare(preset, rounds)
        passed &= all(found[f"to_torch_{precision}"] >= target for precision, target in TO_TORCH[preset].items())
        passed &= found.get("to_plain", 0.0) >= TO_PLAIN.get(preset, 0.0)
        if preset != "prototype":
            found["second_core"] = compare_cores(preset, rounds)
            passed &= found["second_core"] >= SECOND_CORE
        if preset == "shakespeare-char":
            found["beside_another_process"] = compare_beside_others(preset, options.rounds)
            passed &= found["beside_another_process"] >= BESIDE_OTHERS
        print(preset, {name: round(value, 2) for name, value in found.items()}, flush=True)
    if "wiki" in results:
        memory = measure_memory()
        results["wiki"] |= memory
        passed &= memory["peak_megabytes"] <= MOST_MEGABYTES and memory["predicted_percent_off"] <= PREDICTED_PERCENT
        print("wiki", {name: round(value, 1) for name, value in memory.items()}, flush=True)
    print(json.dumps({"benchmark": "native", "results": results, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
