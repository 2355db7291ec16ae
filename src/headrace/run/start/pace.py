"""The pace at which this machine trains: what its peak lets expect, or less where a few updates show that it is slower.

The usual share of the peak was found on one kind of machine. Others lose more beside the products, and without the
native library a small network is several times slower. So a small network takes some updates once, and every
expectation is slowed down by what they took longer than expected; it is never sped up.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.machine.allocator import release_freed_memory
from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.machine.device import best_device
from headrace.machine.hardware import find_hardware
from headrace.machine.measure import PRECISIONS
from headrace.machine.peak import measure_peak_flops
from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.native.library import instructions
from headrace.perf.pace import Pace, flops_per_token, usual_pace
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
"""The network that takes these updates: like those chosen for a minute, with as many tokens as they compare."""
LEAST_SEQUENCES = 8


@dataclass(frozen=True)
class UpdateTime:
    """The time of updates of the small network, for each token."""

    seconds_per_token: float


def machine_pace(num_processes: int = 1) -> Pace:
    """Return the pace at which processes like this one should train; what is not remembered is measured in a second."""
    peak = _peak_flops()
    training = _training()
    in_update = update_flops(MODEL, training.optimizer, _execution(training).dtype)
    flops = flops_per_token(MODEL, training.mean_window, training.tokens_per_update, in_update)
    expected_s = usual_pace(peak).seconds_per_token(flops, MODEL.num_layers)
    return usual_pace(num_processes * peak).slowed(max(1.0, _update_time().seconds_per_token / expected_s))


def _peak_flops() -> float:
    """Return the peak that is remembered of this machine, or measure it quickly."""
    machine, threads = remembered_machine(), torch.get_num_threads()
    known = [known_rates(Execution(1, precision, threads=threads), machine) for precision in get_args(Precision)]
    return max((rates.peak_flops for rates in known if rates), default=0.0) or _quick_peak()


@functools.cache
def _quick_peak() -> float:
    """Measure the peak briefly, once in a process."""
    return max(measure_peak_flops(dtype, QUICK_PEAK_S) for dtype in PRECISIONS.values())


def _update_time() -> UpdateTime:
    """Return the time of updates that is remembered, or measure it."""
    depends_on = {
        "machine": find_hardware().fingerprint,
        "threads": torch.get_num_threads(),
        "native": instructions(),
    }
    place = Remembered(UpdateTime, "update-times", depends_on)
    found = place.read()
    if found is None:
        began = ProcessorTime.now()
        found = _measure_updates(torch.get_num_threads())
        if not is_disturbed(ProcessorTime.now().taken_percent_since(began)):
            place.write(found)
    return found


@functools.cache
def _measure_updates(_num_threads: int) -> UpdateTime:
    """Time updates, once for a number of threads; the fastest counts, as other programs only make them slower."""
    training = _training()
    network = build(MODEL).to(best_device())
    step = TrainStep(Replica(network), Optimizer(network, training), _execution(training), training.gradient_clip)
    shape = (training.batch_size, training.sequence_length + 1)
    tokens = np.random.default_rng(0).integers(0, MODEL.vocab_size, shape)
    batch = Batch(0, tokens[:, :-1], tokens[:, 1:])
    step(batch, 1.0)  # makes the state of the optimizer, and starts threads
    taken: list[float] = []
    while not taken or sum(taken) < UPDATES_S:
        began = time.perf_counter()
        step(batch, 1.0)
        taken.append(time.perf_counter() - began)
    release_freed_memory()
    return UpdateTime(min(taken) / training.tokens_per_update)


def _training() -> TrainingConfig:
    """Return how the small network is trained: every thread has sequences."""
    return TrainingConfig(batch_size=max(LEAST_SEQUENCES, 2 * torch.get_num_threads()), max_length=MODEL.context)


def _execution(training: TrainingConfig) -> Execution:
    """Return the way to compute updates that is likely to be the fastest."""
    plain = plainest(training, training.batch_size, memory_limit=None)
    if why_not_native(MODEL, training):
        return plain
    return likely_fastest_first(native_ways(plain, training, training.batch_size))[0]
