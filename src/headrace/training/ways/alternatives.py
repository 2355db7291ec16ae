"""The ways to compute a step that are worth a comparison: kernels, precisions, micro-batches, the native library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace

import torch

from headrace.errors import UsageError
from headrace.models.config import ModelConfig
from headrace.models.kernels import CHUNK_BYTES, SMALL_CHUNK_BYTES
from headrace.models.linear import has_onednn
from headrace.native.engine import ROWS_AT_ONCE, why_not
from headrace.native.library import multiplies_bfloat16
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution

PROBE_TOKENS = 2048
"""Tokens of one measurement: enough for matrix products to run at full rate."""
# Limits of a micro-batch on a CPU. Larger ones are faster by 4% at best (docs/LOG.md), and trying them would take most
# of the memory of a run.
FEWEST_TOKENS, MOST_TOKENS = 256, 4096
LONGEST_PRODUCTS = 2048
"""Longest sequence on which attention by batched products is tried: beyond, its memory grows and the gain is gone."""


def plainest(training: TrainingConfig, num_rows: int, memory_limit: int | None) -> Execution:
    """Return the execution that others are compared with; where memory is limited, one sequence at a time."""
    size = training.micro_batch_size or default_micro_batch(num_rows, training.sequence_length)
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


def alternatives(plain: Execution, training: TrainingConfig) -> list[Execution]:
    """Return the plain execution, and PyTorch's kernels and precision that might be faster on this machine."""
    ways = [plain]
    if plain.precision == "float32" and training.matmul == "auto" and has_onednn() and not torch.cuda.is_available():
        ways.append(replace(plain, matmul="onednn"))
    if training.precision == "auto":
        ways.append(replace(plain, precision="bfloat16"))
    # On a GPU the fused kernel is faster at any length.
    if training.attention == "auto" and training.sequence_length <= LONGEST_PRODUCTS and not torch.cuda.is_available():
        ways += [replace(way, attention="products") for way in ways]
    return ways


def why_not_native(model: ModelConfig, training: TrainingConfig, sharding: str = "ddp") -> str:
    """Return why the native library cannot compute the steps of a run, in words for a person; empty if it can."""
    if sharding == "fsdp":
        return "it needs whole weights, and fsdp shards them"
    if torch.cuda.is_available():
        return "it computes on processors only, and there is a GPU"
    if training.gradient_checkpointing or training.compile:
        return "it has no gradient checkpointing and no compilation"
    return why_not(model)


def native_ways(plain: Execution, training: TrainingConfig, num_rows: int) -> list[Execution]:
    """Return the executions of the native library to try, on enough rows to keep every thread busy."""
    rows = plain.threads * max(1, ROWS_AT_ONCE // training.sequence_length)
    native = Execution(
        training.micro_batch_size or min(num_rows, rows),
        plain.precision,
        threads=plain.threads,
        head_chunk_bytes=plain.head_chunk_bytes,
        engine="native",
    )
    return [native, replace(native, precision="bfloat16")] if training.precision == "auto" else [native]


def smaller_natives(native: Execution, training: TrainingConfig) -> Iterator[Execution]:
    """Yield a native execution, then with fewer and fewer sequences at a time, down to one for each thread.

    Each takes less memory than the one before it. A micro-batch that the configuration sets is left as it is.
    """
    yield native
    size = native.micro_batch_size
    while size > native.threads and not training.micro_batch_size:
        size = max(native.threads, size // 2)
        yield replace(native, micro_batch_size=size)


def likely_fastest_first(ways: list[Execution]) -> list[Execution]:
    """Sort ways by what they are likely to cost, before anything is measured: native ones, then the plain one."""
    wanted = "bfloat16" if multiplies_bfloat16() else "float32"
    return sorted(ways, key=lambda way: (way.engine != "native", way.engine == "native" and way.precision != wanted))


def default_micro_batch(num_rows: int, sequence_length: int) -> int:
    """Return a micro-batch size to use without measuring: usually near the fastest.

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


def has_compiler() -> bool:
    """Return whether torch.compile finds a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++") if name)


def rows_to_measure(execution: Execution, num_rows: int, sequence_length: int) -> int:
    """Return the rows of a batch that one measurement takes: whole micro-batches, near PROBE_TOKENS.

    >>> rows_to_measure(Execution(2), 32, 1024), rows_to_measure(Execution(16), 16, 256)
    (2, 16)
    """
    size = execution.micro_batch_size
    return max(1, min(num_rows, -(-PROBE_TOKENS // sequence_length)) // size) * size
