"""The choice of an execution by measurement: precision, kernels, micro-batch, gradient checkpointing, compilation."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.errors import TrainingError, UsageError
from headrace.machine.allocator import release_freed_memory
from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.machine.facts import memory_bytes
from headrace.models.config import ModelConfig
from headrace.models.counts import FLOAT_BYTES
from headrace.models.kernels import CHUNK_BYTES, SMALL_CHUNK_BYTES, probabilities_per_token
from headrace.models.linear import has_onednn
from headrace.models.network import Network
from headrace.native.engine import ROWS_AT_ONCE, planned_bytes, why_not
from headrace.native.library import multiplies_bfloat16
from headrace.training.comparing import CHOOSING_SECONDS, NUM_ROUNDS, Measurements, answer, compare
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.step import accumulate

PROBE_TOKENS = 2048
"""Tokens of one measurement: enough for matrix products to run at full rate."""
# Limits of a micro-batch on a CPU. Larger ones are faster by 4% at best (docs/LOG.md), and trying them would take most
# of the memory of a run.
FEWEST_TOKENS, MOST_TOKENS = 256, 4096
LONGEST_PRODUCTS = 2048
"""Longest sequence on which attention by batched products is tried: beyond, its memory grows and the gain is gone."""
PRODUCTS_SHARE = 0.03
"""Share of a memory limit that the probabilities of one sequence may take."""
MARGIN = 0.95
"""Share of the memory limit that a choice may use; the rest is a reserve for what measurements do not show."""


class Search:
    """The search for the fastest way to compute a step that stays below a memory limit.

    It asks for one measurement at a time, so that whoever answers may take them where it likes: on a batch before
    training (`choose_execution`), or on the micro-batches of the first steps (training/choosing.py).
    """

    def __init__(
        self,
        model: ModelConfig,
        training: TrainingConfig,
        memory_limit: int | None = None,
        reserve: Callable[[], int] = lambda: 0,
        num_processes: int = 1,
        seconds: float = CHOOSING_SECONDS,
        sharding: str = "ddp",
    ) -> None:
        """`reserve` returns the bytes that will be needed beside passes (the optimizer's state) and are not there yet.

        `num_processes`: how many share the rows of a batch; `sharding`: how they share the model. `seconds`: after
        these, one round per choice is enough.
        """
        self._model, self._training, self._limit = model, training, memory_limit
        self._reserve, self._seconds = reserve, seconds
        num_rows = self._num_rows = training.batch_size // num_processes
        self._probe_size = default_micro_batch(num_rows, training.sequence_length)
        self._why_not_native = why_not_native(model, training, sharding)
        if training.engine == "native" and self._why_not_native:
            raise UsageError(
                f"training.engine=native is not possible: {self._why_not_native}. Use training.engine=auto."
            )
        self.best = _plainest(training, num_rows, self._probe_size, memory_limit)
        """The fastest way that is known so far."""
        self._sizes = [] if training.micro_batch_size else candidate_sizes(num_rows, training.sequence_length)

    @property
    def ways(self) -> list[Execution]:
        """The ways that are compared, as far as they are known before anything is measured."""
        return self._kernels(self.best) + [replace(self.best, micro_batch_size=size) for size in self._sizes]

    def measurements(self) -> Measurements[Execution, None]:
        """Yield the ways to measure, each when the one before it has been answered with its seconds per sequence."""
        training, limit = self._training, self._limit
        if limit is not None and not training.micro_batch_size:
            release_freed_memory()
            yield self.best
            if self._needed_bytes() > limit:
                self.best = replace(self.best, gradient_checkpointing=True)
                release_freed_memory()
        size = self.best.micro_batch_size
        probe = replace(self.best, micro_batch_size=min(size, self._probe_size))
        kernels = self._kernels(probe)  # before any native step, whose memory would count twice
        if not training.threads and self.best.threads > 1:
            threads = yield from _choose_threads(_likely_fastest(kernels), self._seconds)
            self.best = replace(self.best, threads=threads)
            kernels = [replace(way, threads=threads) for way in kernels]
        yield from self._compare_kernels(kernels)
        if self.best.engine == "native":
            # Its threads divide the whole batch themselves. Measured once more, for what is remembered is its time.
            self.best = replace(self.best, micro_batch_size=training.micro_batch_size or self._num_rows)
            yield self.best
            release_freed_memory()
            return
        self.best = replace(self.best, micro_batch_size=size)
        if self._sizes:
            sizes = self._sizes if limit is None else (yield from self._sizes_within(limit))
            yield from self._compare([replace(self.best, micro_batch_size=size) for size in sizes])
        if training.compile and has_compiler():
            yield from self._compare([self.best, replace(self.best, compile=True, matmul="default", attention="fused")])
        release_freed_memory()

    def _compare_kernels(self, ways: list[Execution]) -> Measurements[Execution, None]:
        """Compare kernels and precisions, without trying in all ways what native steps show to be slow.

        Where they compute faster in bfloat16 than in float32, PyTorch's float32 is left out: it takes twice as long.
        """
        native = [way for way in ways if way.engine == "native"]
        if len(native) > 1 and len(native) < len(ways):
            yield from self._compare(native)
            if self.best.precision == "bfloat16":
                others = [way for way in ways if way.engine != "native" and way.precision == "bfloat16"]
                ways = [self.best, *others]  # first: until another is measured to be faster, it is the best
        yield from self._compare(ways)

    def _kernels(self, plain: Execution) -> list[Execution]:
        """Return the plain execution and what might be faster: kernels and precision of torch, the native library."""
        ways = _alternatives(plain, self._training, self._model, self._limit)
        if self._training.engine == "torch" or self._why_not_native:
            return ways
        native = _native_ways(plain, self._training, self._num_rows)
        if self._training.engine == "native":
            return native
        return ways + [way for way in native if self._has_room_for(way)]

    def _has_room_for(self, native: Execution) -> bool:
        """Return whether the memory of native steps, which is planned in advance, stays below the limit."""
        if self._limit is None:
            return True
        length, threads = self._training.sequence_length, native.threads
        planned = planned_bytes(self._model, self._num_rows, length, native.precision, threads)
        return self._needed_bytes() + planned <= MARGIN * self._limit

    def _compare(self, ways: list[Execution]) -> Measurements[Execution, None]:
        """Make the fastest of some ways the best one, and on the way there the fastest so far."""

        def note(way: Execution) -> None:
            self.best = way

        self.best = yield from compare(ways, seconds=self._seconds, note=note)

    def _sizes_within(self, limit: int) -> Measurements[Execution, list[int]]:
        """Return the sizes that stay below the memory limit, extrapolated from one and two sequences at a time."""
        release_freed_memory()
        yield replace(self.best, micro_batch_size=1)
        at_one = self._needed_bytes()
        if at_one > limit:
            raise TrainingError(
                f"training.memory_budget, or what is free without one: even one sequence at a time with gradient"
                f" checkpointing needs {(at_one - limit) / 2**20:.0f} MiB more. Raise training.memory_budget, or choose"
                " a smaller model.d_model, model.num_layers or training.sequence_length."
            )
        yield replace(self.best, micro_batch_size=2)
        per_sequence = self._needed_bytes() - at_one
        most = MARGIN * (limit - self._reserve()) + self._reserve()
        return [size for size in self._sizes if at_one + (size - 1) * per_sequence <= most] or [1]

    def _needed_bytes(self) -> int:
        """Return the memory that the process has, with what is still to come; the first update does not change it."""
        return memory_bytes() + self._reserve()


def choose_execution(
    network: Network,
    batch: Batch,
    training: TrainingConfig,
    memory_limit: int | None = None,
    reserve: int = 0,
    num_processes: int = 1,
    seconds: float = CHOOSING_SECONDS,
) -> Execution:
    """Return the fastest way to compute a step of this batch that stays below the memory limit, measured at once.

    The other arguments are those of `Search`.
    """
    search = Search(network.config, training, memory_limit, lambda: reserve, num_processes, seconds)
    answer(search.measurements(), measure_on(network, batch))
    return search.best


def measure_on(network: Network, batch: Batch) -> Callable[[Execution], float]:
    """Return a function that measures the seconds per sequence of an execution on the rows of one batch."""
    replica = Replica(network)
    return lambda execution: _time(replica, batch, execution)


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


def _likely_fastest(ways: list[Execution]) -> Execution:
    """Return a way to begin with, before anything is measured: a native one where there is one, else the plain one."""
    native = [way for way in ways if way.engine == "native"]
    wanted = "bfloat16" if multiplies_bfloat16() else "float32"
    return next((way for way in native if way.precision == wanted), (native or ways)[0])


def _choose_threads(plain: Execution, seconds: float) -> Measurements[Execution, int]:
    """Return the number of threads: all, or fewer where other programs use the processor and fewer are faster.

    Threads wait for the slowest of them at every operation, so one that another program displaces delays all. The
    median time counts here, not the least: the other programs will still be there during training.
    """
    yield plain  # the first time pays for fresh memory
    began = ProcessorTime.now()
    yield plain
    if not is_disturbed(ProcessorTime.now().taken_percent_since(began)):
        return plain.threads
    ways = [replace(plain, threads=plain.threads >> halvings) for halvings in range(plain.threads.bit_length())]
    times: dict[Execution, list[float]] = {way: [] for way in ways}
    start = time.perf_counter()
    for _ in range(NUM_ROUNDS):
        for way in ways:
            times[way].append((yield way))
        if time.perf_counter() - start > seconds:
            break
    return min(ways, key=lambda way: statistics.median(times[way])).threads


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


def _alternatives(
    plain: Execution, training: TrainingConfig, model: ModelConfig, memory_limit: int | None
) -> list[Execution]:
    """Return the plain execution, and the kernels and precision that might be faster on this machine."""
    ways = [plain]
    if plain.precision == "float32" and training.matmul == "auto" and has_onednn() and not torch.cuda.is_available():
        ways.append(replace(plain, matmul="onednn"))
    if training.precision == "auto":
        ways.append(replace(plain, precision="bfloat16"))
    if training.attention == "auto" and _has_room_for_products(training, model, memory_limit):
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


def _native_ways(plain: Execution, training: TrainingConfig, num_rows: int) -> list[Execution]:
    """Return the executions of the native library to try, on enough rows to keep every thread busy."""
    rows = max(1, plain.threads * ROWS_AT_ONCE // training.sequence_length)
    native = Execution(
        training.micro_batch_size or min(num_rows, rows),
        plain.precision,
        threads=plain.threads,
        head_chunk_bytes=plain.head_chunk_bytes,
        engine="native",
    )
    return [native, replace(native, precision="bfloat16")] if training.precision == "auto" else [native]


def _has_room_for_products(training: TrainingConfig, model: ModelConfig, memory_limit: int | None) -> bool:
    """Return whether attention by batched products is worth a trial: on CPUs, where its probabilities are small.

    On a GPU the fused kernel is faster at any length. A trial must not fill the memory, which it would on long ones.
    """
    if torch.cuda.is_available() or training.sequence_length > LONGEST_PRODUCTS:
        return False
    kept = FLOAT_BYTES * model.num_layers * probabilities_per_token(training.sequence_length, model.heads)
    return memory_limit is None or kept * training.sequence_length <= PRODUCTS_SHARE * memory_limit


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


def _time(replica: Replica, batch: Batch, execution: Execution) -> float:
    """Measure the seconds per sequence of forward and backward passes over at least PROBE_TOKENS."""
    rows = rows_to_measure(execution, *batch.inputs.shape)
    part = batch.rows(slice(0, rows))
    execution.set_threads()
    began = time.perf_counter()
    accumulate(replica, part, execution)
    seconds = (time.perf_counter() - began) / len(part.inputs)
    replica.network.zero_grad(set_to_none=True)
    return seconds
