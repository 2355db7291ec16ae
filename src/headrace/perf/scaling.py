"""A model of data parallel scaling: computation that is divided among processes against communication that is not."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Step:
    """An update of the whole batch in one process, and the size of its gradients."""

    passes_s: float
    """Forward and backward, which are divided among processes."""
    backward_s: float
    """The backward part of `passes_s`, which can hide communication."""
    optimizer_s: float
    """The optimizer's step, which every process does for itself."""
    num_micro_batches: int
    """Micro-batches of one process alone; gradients are sent during the last one."""
    gradient_bytes: int
    last_bytes: int
    """Gradients that are known only when the backward pass ends (the embedding's): nothing hides sending them."""


@dataclass(frozen=True)
class Expected:
    """The expected result of training with a number of processes."""

    step_s: float
    communication_s: float
    exposed_s: float
    """The part of communication that computation does not hide."""
    speedup: float


def ring_bytes(num_processes: int, gradient_bytes: float) -> float:
    """Return the bytes that each process sends in a ring all-reduce: every gradient twice, except its own part.

    >>> ring_bytes(1, 100), ring_bytes(2, 100), ring_bytes(4, 100)
    (0.0, 100.0, 150.0)
    """
    return 2 * (num_processes - 1) / num_processes * gradient_bytes


def expect(step: Step, num_processes: int, bytes_per_second: float) -> Expected:
    """Predict step time and speedup over links of this speed, if all processes are equally fast."""
    communication_s = ring_bytes(num_processes, step.gradient_bytes) / bytes_per_second
    last_s = ring_bytes(num_processes, step.last_bytes) / bytes_per_second
    num_micro_batches = max(1, step.num_micro_batches // num_processes)
    hiding_s = step.backward_s / num_processes / num_micro_batches
    exposed_s = max(communication_s - hiding_s, last_s)
    alone_s = step.passes_s + step.optimizer_s
    step_s = step.passes_s / num_processes + exposed_s + step.optimizer_s
    return Expected(step_s, communication_s, exposed_s, alone_s / step_s)


def whole_batch(batch_size: int, num_processes: int) -> int:
    """Return the smallest batch, of at least this size, that processes can divide evenly.

    >>> whole_batch(16, 4), whole_batch(16, 12), whole_batch(16, 64)
    (16, 24, 64)
    """
    return -(-batch_size // num_processes) * num_processes


def project(step: Step, batch_size: int, num_processes: int, bytes_per_second: float) -> float:
    """Predict the speedup in tokens/s over one process, with the batch that this many processes can divide.

    >>> step = Step(8.0, 6.0, 0.0, num_micro_batches=4, gradient_bytes=0, last_bytes=0)
    >>> project(step, 16, 8, 1e9), project(step, 16, 64, 1e9)
    (8.0, 64.0)
    """
    growth = whole_batch(batch_size, num_processes) / batch_size
    larger = replace(
        step,
        passes_s=growth * step.passes_s,
        backward_s=growth * step.backward_s,
        num_micro_batches=round(growth * step.num_micro_batches),
    )
    alone_s = step.passes_s + step.optimizer_s
    return growth * alone_s / expect(larger, num_processes, bytes_per_second).step_s
