"""The choice of an execution by measurement: precision, kernels, micro-batch, gradient checkpointing, compilation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.errors import UsageError
from headrace.machine.allocator import release_freed_memory
from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.machine.facts import memory_bytes
from headrace.models.config import ModelConfig
from headrace.models.network import Network
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.showing.presentation import Presentation
from headrace.training.showing.vocabulary import open_flat_sampler
from headrace.training.step import accumulate
from headrace.training.ways.alternatives import (
    alternatives,
    candidate_sizes,
    default_micro_batch,
    has_compiler,
    likely_fastest_first,
    native_ways,
    plainest,
    rows_to_measure,
    smaller_natives,
    why_not_native,
)
from headrace.training.ways.comparing import CHOOSING_SECONDS, NUM_ROUNDS, Measurements, answer, compare
from headrace.training.ways.memory import SPARE_BYTES, Demand, short_pass_bytes


class Search:
    """The search for the fastest way to compute a step that stays below a memory limit.

    It asks for one measurement at a time, so that whoever answers may take them where it likes: on a batch before
    training (`choose_execution`), or on the micro-batches of the first steps (training/choosing.py). Below a limit, it
    begins with the way that takes little memory and is likely to be fast, and asks for no way that would break it.
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
        """`reserve` returns the bytes that steps need beside passes and do not have yet: gradients, optimizer state.

        `num_processes`: how many share the rows of a batch; `sharding`: how they share the model. `seconds`: after
        these, one round per choice is enough.
        """
        self._model, self._training, self._limit = model, training, memory_limit
        self._reserve, self._seconds = reserve, seconds
        num_rows = self._num_rows = training.batch_size // num_processes
        self._why_not_native = why_not_native(model, training, sharding)
        if training.engine == "native" and self._why_not_native:
            raise UsageError(
                f"training.engine=native is not possible: {self._why_not_native}. Use training.engine=auto."
            )
        self._plain = self.best = plainest(training, num_rows, memory_limit)
        """The fastest way that is known so far."""
        self._sizes = [] if training.micro_batch_size else candidate_sizes(num_rows, training.sequence_length)
        self._newest: Execution | None = None
        """The way that was measured last."""

    @property
    def ways(self) -> list[Execution]:
        """The ways that are compared, as far as they are known before anything is measured or left out for memory."""
        return [*self._kernels(self._plain), *(replace(self._plain, micro_batch_size=size) for size in self._sizes)]

    def demand(self, way: Execution | None = None) -> Demand:
        """Return the memory that steps need in some way, or in the way with which a search below a limit begins."""
        held = self._held_bytes()
        return self._demand(way or self._beginning(held), held)

    def measurements(self) -> Measurements[Execution, None]:
        """Yield the ways to measure, each when the one before it has been answered with its seconds per sequence."""
        asked = self._asked()
        try:
            way = next(asked)
            while True:
                seconds = yield way
                self._newest = way
                way = asked.send(seconds)
        except StopIteration:
            release_freed_memory()

    def _asked(self) -> Measurements[Execution, None]:
        training, limit = self._training, self._limit
        if limit is not None:
            self.best = self._beginning(self._held_bytes())
            yield self.best  # from here on, what the process has is known, gradients included
        kernels = self._kernels_to_compare()
        if not training.threads and kernels[0].threads > 1:
            threads = yield from _choose_threads(likely_fastest_first(kernels)[0], self._seconds)
            self.best = replace(self.best, threads=threads)
            kernels = [replace(way, threads=threads) for way in kernels]
        yield from self._compare_kernels(kernels)
        if self.best.engine == "native":
            # Its threads divide the whole batch themselves. Measured once more, for what is remembered is its time.
            whole = replace(self.best, micro_batch_size=training.micro_batch_size or self._num_rows)
            self.best = whole if self._fitting([whole]) else self.best
            yield self.best
            return
        if training.micro_batch_size:
            self.best = replace(self.best, micro_batch_size=training.micro_batch_size)
        else:
            sized = [replace(self.best, micro_batch_size=size) for size in self._sizes]
            yield from self._compare(self._fitting(sized) or [self.best])
        if training.compile and has_compiler():
            yield from self._compare([self.best, replace(self.best, compile=True, matmul="default", attention="fused")])

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

    def _compare(self, ways: list[Execution]) -> Measurements[Execution, None]:
        """Make the fastest of some ways the best one, and on the way there the fastest so far."""

        def note(way: Execution) -> None:
            self.best = way

        self.best = yield from compare(ways, seconds=self._seconds, note=note)

    # Which ways there are

    def _kernels(self, plain: Execution) -> list[Execution]:
        """Return the plain execution and what might be faster: kernels and precision of torch, the native library."""
        torch_ways = [] if self._training.engine == "native" else alternatives(plain, self._training)
        return torch_ways + self._natives(plain)

    def _natives(self, plain: Execution) -> list[Execution]:
        if self._training.engine == "torch" or self._why_not_native:
            return []
        return native_ways(plain, self._training, self._num_rows)

    def _kernels_to_compare(self) -> list[Execution]:
        """Return the kernels and precisions that stay below the limit, on as many rows as a measurement takes."""
        most = default_micro_batch(self._num_rows, self._training.sequence_length)
        plain = replace(self._plain, micro_batch_size=min(self._plain.micro_batch_size, most))
        if self._limit is None:
            return self._kernels(plain)
        begun, held = self.best, self._held_bytes()
        plain = replace(plain, threads=begun.threads, gradient_checkpointing=begun.gradient_checkpointing)
        torch_ways = [] if self._training.engine == "native" else alternatives(plain, self._training)
        natives = [self._largest(native, held) for native in self._natives(plain)]
        ways = [way for way in [*torch_ways, *natives] if way is not None and self._has_room(way, held)]
        return ways or [begun]

    # Memory

    def _beginning(self, held: int) -> Execution:
        """Return a way that is likely to be fast in the least memory: native if it fits, else one sequence by PyTorch.

        Where nothing fits, it is what takes the least memory.
        """
        training, natives = self._training, likely_fastest_first(self._natives(self._plain))
        ways = [[*smaller_natives(way, training)][-1] for way in natives]
        if not training.threads and not training.micro_batch_size:
            ways += [replace(way, micro_batch_size=1, threads=1) for way in ways if way.threads > 1]
        if training.engine != "native":
            ways += [self._plain]
            ways += [] if training.micro_batch_size else [replace(self._plain, gradient_checkpointing=True)]
        fitting = [way for way in ways if self._has_room(way, held)]
        return fitting[0] if fitting else min(ways, key=lambda way: self._demand(way, held).total)

    def _largest(self, native: Execution, held: int) -> Execution | None:
        """Return a native way with as many sequences at a time as fit, or fewer; None if not even one does."""
        return next((way for way in smaller_natives(native, self._training) if self._has_room(way, held)), None)

    def _fitting(self, ways: list[Execution]) -> list[Execution]:
        """Return the ways that stay below the limit."""
        if self._limit is None:
            return ways
        held = self._held_bytes()
        return [way for way in ways if self._has_room(way, held)]

    def _has_room(self, way: Execution, held: int) -> bool:
        return self._limit is None or self._demand(way, held).total + SPARE_BYTES <= self._limit

    def _demand(self, way: Execution, held: int) -> Demand:
        return Demand.of(self._model, self._training, way, held, self._reserve())

    def _held_bytes(self) -> int:
        """Return the memory that the process has without that of passes: freed memory, and what a native step plans."""
        release_freed_memory()
        newest = self._newest
        planned = 0
        if newest is not None and newest.engine == "native":
            planned = short_pass_bytes(self._model, self._training, newest)
        return memory_bytes() - planned


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
    if memory_limit is not None:
        search.demand().check(memory_limit, training)
    answer(search.measurements(), measure_on(network, batch, training, memory_limit))
    return search.best


def measure_on(
    network: Network, batch: Batch, training: TrainingConfig, memory_limit: int | None = None
) -> Callable[[Execution], float]:
    """Return a function that measures the seconds per sequence of an execution on the rows of one batch."""
    replica = Replica(network)
    replica.memory_limit = memory_limit
    sampler = open_flat_sampler(training, network.config.vocab_size)
    presentation = Presentation(candidates=sampler.draw(0, (batch.inputs, batch.targets)) if sampler else None)
    return lambda execution: _time(replica, batch, execution, presentation)


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


def _time(replica: Replica, batch: Batch, execution: Execution, presentation: Presentation) -> float:
    """Measure the seconds per sequence of forward and backward passes over at least PROBE_TOKENS."""
    rows = rows_to_measure(execution, *batch.inputs.shape)
    part = batch.rows(slice(0, rows))
    execution.set_threads()
    began = time.perf_counter()
    accumulate(replica, part, execution, presentation=presentation)
    seconds = (time.perf_counter() - began) / len(part.inputs)
    replica.network.zero_grad(set_to_none=True)
    return seconds
