"""What a run records about its machine, its memory and its execution: the contents of environment.json."""

from __future__ import annotations

from dataclasses import asdict

import torch

from headrace.machine.allocator import release_freed_memory
from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.machine.device import best_device
from headrace.machine.facts import environment
from headrace.machine.hardware import available_memory_bytes
from headrace.machine.measure import measure_memory_bandwidth, torch_threads
from headrace.machine.peak import measure_peak_flops
from headrace.models.counts import count
from headrace.perf.memory import memory_parts
from headrace.run.config import Config
from headrace.run.execution.rates import Rates, remembered_rates
from headrace.run.machine import Machine
from headrace.run.memory import num_shards, with_snapshot
from headrace.run.records import Environment
from headrace.run.remembered_scaling import Scaling
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import state_bytes
from headrace.training.optimizers.average import average_bytes
from headrace.training.pauses import saves_before_end

PEAK_SECONDS = 0.3  # of measuring the peak on a quiet machine
MEASURED_BYTES = 128 << 20
"""Memory that `measure_rates` takes for a moment, and more than it needs: 105 MB were measured."""


def describe_environment(
    config: Config,
    execution: Execution,
    activation_bytes_per_token: float,
    rates: Rates,
    loader_bytes: int,
    runtime_bytes: int,
    machine: Machine | None,
    scaling: Scaling | None,
) -> Environment:
    """Return what a report needs besides the metrics."""
    training = config.training
    counts = count(config.model, training.sequence_length)
    parts = memory_parts(
        config.model,
        counts,
        state_bytes(counts, training.optimizer, training.related_tokens),
        micro_batch_tokens=execution.micro_batch_size * training.sequence_length,
        activation_bytes_per_token=activation_bytes_per_token,
        head_chunk_bytes=execution.head_chunk_bytes,
        loader_bytes=loader_bytes,
        runtime_bytes=runtime_bytes,
        num_shards=num_shards(config),
        precision=execution.precision,
        is_native=execution.engine == "native",
        average_bytes=average_bytes(counts.num_parameters, training.average),
    )
    if saves_before_end(training, 60 * training.max_minutes, training.max_steps):
        parts = with_snapshot(parts, training.memory_budget or available_memory_bytes() + runtime_bytes)
    return Environment(
        **environment(),
        peak_flops=rates.peak_flops,
        execution=asdict(execution),
        activation_bytes_per_token=activation_bytes_per_token,
        memory_parts=parts.as_dict(),
        memory_bandwidth=rates.memory_bandwidth,
        machine=machine,
        scaling=scaling,
    )


def known_rates(execution: Execution, machine: Machine | None) -> Rates | None:
    """Return the rates of one process that `headrace machine` or a run measured before, if any did; never measure."""
    found = remembered_rates(execution).read()
    peak = machine.measurements.peak_flops(execution.precision, execution.threads) if machine else None
    if machine is None or peak is None:
        return found
    return Rates(max(peak, found.peak_flops if found else 0.0), machine.measurements.memory_bandwidth)


def measure_rates(execution: Execution) -> Rates:
    """Measure the rates of one process in about a second; remember them unless other programs took the processor.

    They are those of the execution's threads, whatever was computed before.
    """
    began = ProcessorTime.now()
    with torch_threads(execution.threads or torch.get_num_threads()):
        peak_flops = measure_peak_flops(execution.dtype, PEAK_SECONDS)
        release_freed_memory()  # the matrices were large
        bandwidth = measure_memory_bandwidth() if best_device().type == "cpu" else None
    rates = Rates(peak_flops, bandwidth)
    if not is_disturbed(ProcessorTime.now().taken_percent_since(began)):
        remembered_rates(execution).write(rates)
    return rates
