"""The pace at which this machine trains: what its peak lets expect, or less where a few updates show that it is slower.

The usual share of the peak was found on one kind of machine, and others lose more beside the products. So a small
network takes some updates once, in the way that the configuration allows, and every expectation is slowed down by what
they took longer than expected. It is never sped up.
"""

from __future__ import annotations

import functools
import time
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np
import torch

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.machine.allocator import release_freed_memory
from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.machine.device import best_device
from headrace.machine.hardware import available_memory_bytes, find_hardware
from headrace.machine.measure import PRECISIONS
from headrace.machine.peak import measure_peak_flops
from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.native.library import ABI, instructions
from headrace.perf.pace import Pace, flops_per_token, usual_pace
from headrace.run.config import Config
from headrace.run.environment import known_rates
from headrace.run.execution.store import Remembered
from headrace.run.machine import remembered_machine
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution, Precision
from headrace.training.optimizers.assignment import update_flops
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.step import TrainStep
from headrace.training.ways.alternatives import likely_fastest_first, native_ways, plainest, why_not_native

QUICK_PEAK_S = 0.2
"""Seconds that measuring the peak takes where it is not remembered: a choice among shapes need not be exact."""
UPDATES_S = 0.3
"""Seconds of updates, after the first one, that are timed where their time is not remembered."""
MODEL = ModelConfig(d_model=96, num_layers=4, vocab_size=1536, context=256)
"""The network that takes these updates: as small as one that is chosen for a minute. Its vocabulary has as many tokens
as the updates of such a run compare (`training.sampled_tokens`)."""
SEQUENCES_PER_THREAD, LEAST_SEQUENCES = 2, 8
"""Sequences of the batch of these updates."""
NEEDED_BYTES = 1 << 30
"""Free memory without which nothing is measured, and more than the updates take."""
MEASURING_ERROR = 1.15
"""Factor by which a quick measurement may be wrong: updates that are slower by less count as fast enough."""


@dataclass(frozen=True)
class UpdateTime:
    """The time of updates of the small network, for each token."""

    seconds_per_token: float


def machine_pace(config: Config, num_processes: int = 1) -> Pace:
    """Return the pace at which processes like this one should train as a configuration says.

    The peak and the time of updates are remembered, or measured in about a second.
    """
    peak = _peak_flops()
    usual = usual_pace(num_processes * peak)
    training = _small_batches(config.training)
    execution = _likely_execution(training)
    measured = _update_time(config, training, execution, num_processes)
    if measured is None:
        return usual
    in_update = update_flops(MODEL, training.optimizer, execution.dtype)
    flops = flops_per_token(MODEL, training.sequence_length, training.tokens_per_update, in_update)
    times = measured.seconds_per_token / usual_pace(peak).seconds_per_token(flops, MODEL.num_layers)
    return usual.slowed(times) if times > MEASURING_ERROR else usual


def _peak_flops() -> float:
    """Return the peak that is remembered of this machine, or measure it quickly."""
    machine, threads = remembered_machine(), torch.get_num_threads()
    known = [known_rates(Execution(1, precision, threads=threads), machine) for precision in get_args(Precision)]
    return max((rates.peak_flops for rates in known if rates), default=0.0) or _quick_peak()


@functools.cache
def _quick_peak() -> float:
    """Measure the peak briefly, once in a process."""
    return max(measure_peak_flops(dtype, QUICK_PEAK_S) for dtype in PRECISIONS.values())


def _update_time(
    config: Config, training: TrainingConfig, execution: Execution, num_processes: int
) -> UpdateTime | None:
    """Return the time of updates that is remembered, or measure it; None where it is not known.

    Of several processes none measures, as they are not bound to their cores yet, and others would be idle. With a
    memory budget nothing is measured either: what that takes would count.
    """
    depends_on = {
        "machine": find_hardware().fingerprint,
        "native": [ABI, instructions()],
        "model": MODEL.shape(),
        "update": [training.optimizer, training.batch_size, training.sequence_length],
        "execution": asdict(execution),
    }
    place = Remembered(UpdateTime, "update-times", depends_on)
    found = None if config.run.measure_again else place.read()
    may_measure = num_processes == 1 and not config.training.memory_budget
    if found is None and may_measure and available_memory_bytes() > NEEDED_BYTES:
        found = _measure_updates(execution, training.optimizer, training.batch_size)
        release_freed_memory()
        if found is not None:
            place.write(found)
    return found


@functools.cache
def _measure_updates(execution: Execution, optimizer: Literal["muon", "adamw"], batch_size: int) -> UpdateTime | None:
    """Time updates, once in a process; the fastest counts. Return None where other programs took the processor."""
    training = TrainingConfig(optimizer=optimizer, batch_size=batch_size, max_length=MODEL.context)
    network = build(MODEL).to(best_device())
    step = TrainStep(Replica(network), Optimizer(network, training), execution, training.gradient_clip)
    tokens = np.random.default_rng(0).integers(0, MODEL.vocab_size, (batch_size, MODEL.context + 1))
    batch = Batch(0, tokens[:, :-1], tokens[:, 1:])
    step(batch, 1.0)  # makes the state of the optimizer, and starts threads
    before, taken = ProcessorTime.now(), [_time(step, batch)]
    while sum(taken) < UPDATES_S:
        taken.append(_time(step, batch))
    if is_disturbed(ProcessorTime.now().taken_percent_since(before)):
        return None
    return UpdateTime(min(taken) / training.tokens_per_update)


def _time(step: TrainStep, batch: Batch) -> float:
    began = time.perf_counter()
    step(batch, 1.0)
    return time.perf_counter() - began


def _small_batches(training: TrainingConfig) -> TrainingConfig:
    """Return how the small network is trained: as a configuration says, but in batches that suit it."""
    num_sequences = max(LEAST_SEQUENCES, SEQUENCES_PER_THREAD * torch.get_num_threads())
    small = {"batch_size": num_sequences, "max_length": MODEL.context, "micro_batch_size": 0, "memory_budget": None}
    return training.model_copy(update=small)


def _likely_execution(training: TrainingConfig) -> Execution:
    """Return the way to compute updates that is likely to be the fastest, of those that a configuration allows."""
    plain = plainest(training, training.batch_size, memory_limit=None)
    if training.engine == "torch" or why_not_native(MODEL, training):
        return plain
    return likely_fastest_first(native_ways(plain, training, training.batch_size))[0]
