"""How to compute a step on this machine, by measuring: precision, kernel, micro-batch, checkpointing, compilation."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TypeVar

import torch

from headrace.data.batch import Batch
from headrace.errors import TrainingError, UsageError
from headrace.machine.allocator import release_freed_memory
from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.machine.facts import memory_bytes
from headrace.models.linear import has_onednn
from headrace.models.loss import CHUNK_BYTES
from headrace.models.network import Network
from headrace.training.config import TrainingConfig
from headrace.training.step import Execution, accumulate

Choice = TypeVar("Choice", bound=Hashable)
PROBE_TOKENS = 2048  # enough for products to run at full rate
# Of a micro-batch. On a processor larger ones are faster by 4% at best (docs/LOG.md), and trying them would take most
# of the memory of a run.
FEWEST_TOKENS, MOST_TOKENS = 256, 4096
NUM_ROUNDS = 3
CHOOSING_SECONDS = 15.0  # after one round for each choice: where a pass is this slow, noise is small beside it
MARGIN = 0.95  # of the memory that is left; the rest is for what no measurement foresees
SMALL_CHUNK_BYTES = CHUNK_BYTES // 2  # of logits, where memory is short
# Another way must be this much faster than the plainer one before it: less is noise, and plainer is better.
WORTHWHILE = 0.97


def choose(
    network: Network,
    batch: Batch,
    training: TrainingConfig,
    memory_limit: int | None = None,
    reserve: int = 0,
    num_processes: int = 1,
    seconds: float = CHOOSING_SECONDS,
) -> Execution:
    """The fastest way to compute a step of this batch that stays below the limit.

    `reserve`: bytes that will be needed beside forward and backward passes (the optimizer's state).
    `num_processes`: how many share the rows of a batch. `seconds`: after these, one round for each choice is enough.
    """
    num_rows = training.batch_size // num_processes
    size = training.micro_batch_size or _probe_size(num_rows, training.max_length)
    if num_rows % size:
        near = min((n for n in range(1, num_rows + 1) if num_rows % n == 0), key=lambda n: abs(n - size))
        raise UsageError(
            f"training.micro_batch_size {size} does not divide batch_size {num_rows}; use"
            f" training.micro_batch_size={near}"
        )
    plain = Execution(
        size if memory_limit is None or training.micro_batch_size else 1,
        "float32" if training.precision == "auto" else training.precision,
        use_onednn=training.matmul == "onednn",
        gradient_checkpointing=training.gradient_checkpointing,
        head_chunk_bytes=CHUNK_BYTES if memory_limit is None else SMALL_CHUNK_BYTES,
        threads=torch.get_num_threads(),
    )

    def measure(execution: Execution) -> float:
        return _time(network, batch, execution)

    if memory_limit is not None and not training.micro_batch_size:
        release_freed_memory()
        measure(plain)
        if memory_bytes() + reserve > memory_limit:
            plain = replace(plain, gradient_checkpointing=True)
            release_freed_memory()
    if not training.threads and plain.threads > 1:
        plain = replace(plain, threads=_choose_threads(plain, measure, seconds))
    probe = min(plain.micro_batch_size, _probe_size(num_rows, training.max_length))
    best = fastest(_ways(replace(plain, micro_batch_size=probe), training), measure, seconds=seconds)
    best = replace(best, micro_batch_size=plain.micro_batch_size)
    if not training.micro_batch_size:
        sizes = candidate_sizes(num_rows, training.max_length)
        if memory_limit is not None:
            sizes = _sizes_within(sizes, best, measure, memory_limit - reserve)
        best = fastest([replace(best, micro_batch_size=size) for size in sizes], measure, seconds=seconds)
    if training.compile and has_compiler():
        best = fastest([best, replace(best, compiled=True, use_onednn=False)], measure)
    release_freed_memory()
    return best


def fastest(
    choices: list[Choice],
    measure: Callable[[Choice], float],
    num_rounds: int = NUM_ROUNDS,
    seconds: float = CHOOSING_SECONDS,
) -> Choice:
    """The choice with the shortest time. They take turns, and noise only ever adds: the least time of each counts.

    A later choice wins only by a clear margin over the best so far.
    """
    if len(choices) == 1:
        return choices[0]
    for choice in choices:
        measure(choice)  # the first time pays for fresh memory
    times = {choice: min(measured) for choice, measured in _rounds(choices, measure, num_rounds, seconds).items()}
    best = choices[0]
    for choice in choices[1:]:
        if times[choice] < WORTHWHILE * times[best]:
            best = choice
    return best


def _choose_threads(plain: Execution, measure: Callable[[Execution], float], seconds: float) -> int:
    """All threads; fewer where other programs use the processor and that is measured to be faster.

    Threads wait for the slowest of them at every operation, so that one which others keep from its core delays all.
    The typical time counts here, not the best: the others will still be there.
    """
    measure(plain)  # the first time pays for fresh memory
    began = ProcessorTime.now()
    measure(plain)
    if not is_disturbed(ProcessorTime.now().taken_percent_since(began)):
        return plain.threads
    ways = [replace(plain, threads=plain.threads >> halvings) for halvings in range(plain.threads.bit_length())]
    times = _rounds(ways, measure, NUM_ROUNDS, seconds)
    return min(ways, key=lambda way: statistics.median(times[way])).threads


def candidate_sizes(batch_size: int, length: int) -> list[int]:
    """Micro-batches worth trying: they divide the batch, and are neither tiny nor huge nor too many.

    >>> candidate_sizes(12, 128)
    [2, 3, 4, 6, 12]
    >>> candidate_sizes(4096, 64)
    [4, 8, 16, 32, 64]
    """
    sizes = [size for size in range(1, batch_size + 1) if batch_size % size == 0]
    sizes = [size for size in sizes if size * length >= FEWEST_TOKENS] or sizes[-1:]
    if not torch.cuda.is_available():
        sizes = [size for size in sizes if size * length <= MOST_TOKENS] or sizes[:1]
    while len(sizes) > 6:
        sizes = sizes[-1::-2][::-1]
    return sizes


def _rounds(
    choices: list[Choice], measure: Callable[[Choice], float], num_rounds: int, seconds: float
) -> dict[Choice, list[float]]:
    times: dict[Choice, list[float]] = {choice: [] for choice in choices}
    began = time.perf_counter()
    for _ in range(num_rounds):
        for choice in choices:
            times[choice].append(measure(choice))
        if time.perf_counter() - began > seconds:
            break
    return times


def _ways(plain: Execution, training: TrainingConfig) -> list[Execution]:
    """The plain way, and whatever this machine might do faster."""
    ways = [plain]
    if plain.precision == "float32" and training.matmul == "auto" and has_onednn() and not torch.cuda.is_available():
        ways.append(replace(plain, use_onednn=True))
    if training.precision == "auto":
        ways.append(replace(plain, precision="bfloat16"))
    return ways


def has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++") if name)


def _sizes_within(
    sizes: list[int], execution: Execution, measure: Callable[[Execution], float], limit: int
) -> list[int]:
    """Sizes whose memory stays below the limit, told from what the two smallest take, before larger ones are tried."""
    release_freed_memory()
    measure(replace(execution, micro_batch_size=1))
    at_one = memory_bytes()
    if at_one > limit:
        raise TrainingError(
            f"training.memory_budget, or what is free without one: even one sequence at a time with gradient"
            f" checkpointing needs {(at_one - limit) / 2**20:.0f} MiB more. Raise training.memory_budget, or choose"
            " a smaller model.d_model, model.num_layers or training.max_length."
        )
    measure(replace(execution, micro_batch_size=2))
    per_sequence = memory_bytes() - at_one
    return [size for size in sizes if at_one + (size - 1) * per_sequence <= MARGIN * limit] or [1]


def _probe_size(num_rows: int, length: int) -> int:
    """The largest micro-batch that is quick to measure."""
    sizes = [size for size in range(1, num_rows + 1) if num_rows % size == 0]
    return max((size for size in sizes if size * length <= PROBE_TOKENS), default=1)


def _time(network: Network, batch: Batch, execution: Execution) -> float:
    """Seconds per sequence of forward and backward passes over at least PROBE_TOKENS."""
    size = execution.micro_batch_size
    rows = max(1, min(len(batch.inputs), -(-PROBE_TOKENS // batch.inputs.shape[1])) // size) * size
    part = batch.rows(slice(0, rows))
    execution.apply_to(network)
    began = time.perf_counter()
    accumulate(network, part, execution, {"forward": 0.0, "backward": 0.0})
    seconds = (time.perf_counter() - began) / len(part.inputs)
    network.zero_grad(set_to_none=True)
    return seconds
