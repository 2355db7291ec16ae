"""What a run records about its machine and its memory before the first step: the contents of environment.json."""

from __future__ import annotations

from dataclasses import asdict

from headrace.machine.allocator import release_freed_memory
from headrace.machine.device import best_device
from headrace.machine.facts import environment
from headrace.machine.hardware import available_memory_bytes
from headrace.machine.measure import measure_memory_bandwidth
from headrace.machine.peak import measure_peak_flops
from headrace.models.counts import count
from headrace.models.network import Network
from headrace.perf.memory import memory_parts
from headrace.run.config import Config
from headrace.run.machine import Machine
from headrace.run.memory import num_shards, with_snapshot
from headrace.run.records import Environment
from headrace.run.remembered_scaling import Scaling
from headrace.training.activations import activation_bytes_per_token
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import state_bytes
from headrace.training.pauses import saves_before_end


def describe_environment(
    config: Config,
    network: Network,
    execution: Execution,
    peak_flops: float,
    loader_bytes: int,
    runtime_bytes: int,
    machine: Machine | None,
    scaling: Scaling | None,
) -> Environment:
    """Return what a report needs besides the metrics; counts activations on the network itself."""
    training = config.training
    per_token = activation_bytes_per_token(network, execution, training.sequence_length)
    counts = count(config.model, training.sequence_length)
    parts = memory_parts(
        config.model,
        counts,
        state_bytes(counts, training.optimizer),
        micro_batch_tokens=execution.micro_batch_size * training.sequence_length,
        activation_bytes_per_token=per_token,
        head_chunk_bytes=execution.head_chunk_bytes,
        loader_bytes=loader_bytes,
        runtime_bytes=runtime_bytes,
        num_shards=num_shards(config),
        precision=execution.precision,
    )
    if saves_before_end(training, 60 * training.max_minutes, training.max_steps):
        parts = with_snapshot(parts, training.memory_budget or available_memory_bytes() + runtime_bytes)
    return Environment(
        **environment(),
        peak_flops=peak_flops,
        execution=asdict(execution),
        activation_bytes_per_token=per_token,
        memory_parts=parts.as_dict(),
        memory_bandwidth=_memory_bandwidth(machine),
        machine=machine,
        scaling=scaling,
    )


def peak_of_process(execution: Execution, machine: Machine | None) -> float:
    """Measure the peak of one process; on a machine that is busy now, a higher remembered peak counts."""
    known = machine.measurements.peak_flops(execution.precision, execution.threads) if machine else None
    measured = measure_peak_flops(execution.dtype)
    release_freed_memory()  # the matrices were large
    return max(measured, known or 0.0)


def _memory_bandwidth(machine: Machine | None) -> float | None:
    """Return the memory bandwidth of the processor, measured now or before; that of an accelerator is unknown."""
    if best_device().type != "cpu":
        return None
    return machine.measurements.memory_bandwidth if machine else measure_memory_bandwidth()
