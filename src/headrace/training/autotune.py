"""The choice of an execution by measurement: precision, kernels, micro-batch, gradient checkpointing, compilation."""

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
from headrace.distributed.replicas import Replica
from headrace.errors import TrainingError, UsageError
from headrace.machine.allocator import release_freed_memory
from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.machine.facts import memory_bytes
from headrace.models.kernels import CHUNK_BYTES, SMALL_CHUNK_BYTES
from headrace.models.linear import has_onednn
from headrace.models.network import Network
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.step import accumulate

Choice = TypeVar("Choice", bound=Hashable)
PROBE_TOKENS = 2048
"""Tokens of one measurement: enough for matrix products to run at full rate."""
# Limits of a micro-batch on a CPU. Larger ones are faster by 4% at best (docs/LOG.md), and trying them would take most
# of the memory of a run.
FEWEST_TOKENS, MOST_TOKENS = 256, 4096
NUM_ROUNDS = 3
CHOOSING_SECONDS = 15.0
"""Time after which one round for each choice is enough: where passes are this slow, noise is small beside them."""
MARGIN = 0.95
"""Share of the memory limit that may be planned with; the rest is for what no measurement foresees."""
WORTHWHILE = 0.97
"""Share of the best time so far that a later choice must stay below: the rest is noise, and the earlier is plainer."""


def choose_execution(
    network: Network,
    batch: Batch,
    training: TrainingConfig,
    memory_limit: int | None = None,
    reserve: int = 0,
    num_processes: int = 1,
    seconds: float = CHOOSING_SECONDS,
) -> Execution:
    """Return the fastest way to compute a step of this batch that stays below the memory limit.

    `reserve`: bytes that will be needed beside forward and backward passes (the optimizer's state).
    `num_processes`: how many share the rows of a batch. `seconds`: after these, one round for each choice is enough.
    """
    num_rows = training.batch_size // num_processes
    probe_size = default_micro_batch(num_rows, training.sequence_length)
    plain = _plainest(training, num_rows, probe_size, memory_limit)
    replica = Replica(network)

    def measure(execution: Execution) -> float:
        return _time(replica, batch, execution)

    if memory_limit is not None and not training.micro_batch_size:
        release_freed_memory()
        measure(plain)
        if memory_bytes() + reserve > memory_limit:
            plain = replace(plain, gradient_checkpointing=True)
            release_freed_memory()
    if not training.threads and plain.threads > 1:
        plain = replace(plain, threads=_choose_threads(plain, measure, seconds))
    probe = replace(plain, micro_batch_size=min(plain.micro_batch_size, probe_size))
    best = fastest(_alternatives(probe, training), measure, seconds=seconds)
    best = replace(best, micro_batch_size=plain.micro_batch_size)
    if not training.micro_batch_size:
        sizes = candidate_sizes(num_rows, training.sequence_length)
        if memory_limit is not None:
            sizes = _sizes_within(sizes, best, measure, memory_limit - reserve)
        best = fastest([replace(best, micro_batch_size=size) for size in sizes], measure, seconds=seconds)
    if training.compile and has_compiler():
        best = fastest([best, replace(best, compile=True, matmul="default")], measure)
    release_freed_memory()
    return best


def _plainest(training: TrainingConfig, num_rows: int, probe_size: int, memory_limit: int | None) -> Execution:
    """Return the execution that others are compared with; where memory is limited, the one that takes the least."""
    size = training.micro_batch_size or probe_size
    if num_rows % size:
        near = min(_divisors(num_rows), key=lambda divisor: abs(divisor - size))
        raise UsageError(
            f"training.micro_batch_size {size} does not divide batch_size {num_rows}; use"
            f" training.micro_batch_size={near}"
        )
    return replace(
        Execution.from_config(training.model_copy(update={"compile": False})),
        micro_batch_size=size if memory_limit is None or training.micro_batch_size else 1,
        head_chunk_bytes=CHUNK_BYTES if memory_limit is None else SMALL_CHUNK_BYTES,
        threads=torch.get_num_threads(),
    )


def fastest(
    choices: list[Choice],
    measure: Callable[[Choice], float],
    num_rounds: int = NUM_ROUNDS,
    seconds: float = CHOOSING_SECONDS,
) -> Choice:
    """Return the choice with the shortest time; a later one wins only by a clear margin over the best so far.

    Choices take turns, and the least time of each counts, because noise only ever adds.
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
    """Return the number of threads: all, or fewer where other programs use the processor and fewer are faster.

    Threads wait for the slowest of them at every operation, so one that another program displaces delays all. The
    median time counts here, not the least: the other programs will still be there during training.
    """
    measure(plain)  # the first time pays for fresh memory
    began = ProcessorTime.now()
    measure(plain)
    if not is_disturbed(ProcessorTime.now().taken_percent_since(began)):
        return plain.threads
    ways = [replace(plain, threads=plain.threads >> halvings) for halvings in range(plain.threads.bit_length())]
    times = _rounds(ways, measure, NUM_ROUNDS, seconds)
    return min(ways, key=lambda way: statistics.median(times[way])).threads


def default_micro_batch(num_rows: int, sequence_length: int) -> int:
    """Return a micro-batch size that is quick to measure, and near what is measured to be fastest.

    >>> default_micro_batch(12, 256)
    6
    """
    return max((size for size in _divisors(num_rows) if size * sequence_length <= PROBE_TOKENS), default=1)


def candidate_sizes(batch_size: int, sequence_length: int) -> list[int]:
    """Return micro-batch sizes worth trying: at most six divisors of the batch size, neither tiny nor huge.

    >>> candidate_sizes(12, 128)
    [2, 3, 4, 6, 12]
    >>> candidate_sizes(4096, 64)
    [4, 8, 16, 32, 64]
    """
    divisors = _divisors(batch_size)
    sizes = [size for size in divisors if size * sequence_length >= FEWEST_TOKENS] or divisors[-1:]
    if not torch.cuda.is_available():
        sizes = [size for size in sizes if size * sequence_length <= MOST_TOKENS] or sizes[:1]
    while len(sizes) > 6:
        sizes = sizes[-1::-2][::-1]
    return sizes


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _rounds(
    choices: list[Choice], measure: Callable[[Choice], float], num_rounds: int, seconds: float
) -> dict[Choice, list[float]]:
    """Measure the choices in turns; return the times of each."""
    times: dict[Choice, list[float]] = {choice: [] for choice in choices}
    began = time.perf_counter()
    for _ in range(num_rounds):
        for choice in choices:
            times[choice].append(measure(choice))
        if time.perf_counter() - began > seconds:
            break
    return times


def _alternatives(plain: Execution, training: TrainingConfig) -> list[Execution]:
    """Return the plain execution, and the kernels and precision that might be faster on this machine."""
    ways = [plain]
    if plain.precision == "float32" and training.matmul == "auto" and has_onednn() and not torch.cuda.is_available():
        ways.append(replace(plain, matmul="onednn"))
    if training.precision == "auto":
        ways.append(replace(plain, precision="bfloat16"))
    return ways


def has_compiler() -> bool:
    """Return whether torch.compile finds a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++") if name)


def _sizes_within(
    sizes: list[int], execution: Execution, measure: Callable[[Execution], float], limit: int
) -> list[int]:
    """Return the sizes that stay below the memory limit, extrapolated from micro-batches of one and two sequences."""
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


def _time(replica: Replica, batch: Batch, execution: Execution) -> float:
    """Measure the seconds per sequence of forward and backward passes over at least PROBE_TOKENS."""
    size = execution.micro_batch_size
    rows = max(1, min(len(batch.inputs), -(-PROBE_TOKENS // batch.inputs.shape[1])) // size) * size
    part = batch.rows(slice(0, rows))
    execution.set_threads()
    began = time.perf_counter()
    accumulate(replica, part, execution)
    seconds = (time.perf_counter() - began) / len(part.inputs)
    replica.network.zero_grad(set_to_none=True)
    return seconds
