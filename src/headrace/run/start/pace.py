"""The pace at which this machine trains: what its peak lets expect, or less where a few updates show that it is slower.

The usual share of the peak was found on one kind of machine, and others lose more beside the products. So a small and
a wider network take some updates once, in the way that the configuration allows; where one of them is slower than
expected, the pace is slowed down to what they show. An expectation is never sped up.
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
"""Seconds of updates of each network, after the first one, that are timed where their times are not remembered."""
MODELS = tuple(ModelConfig(d_model=width, num_layers=4, vocab_size=1536, context=256) for width in (96, 256))
"""The networks that take these updates: as small as one that is chosen for a minute, and as wide as one for an hour.
Their vocabulary has as many tokens as the updates of such runs compare (`training.sampled_tokens`)."""
SEQUENCES_PER_THREAD, LEAST_SEQUENCES = 2, 8
"""Sequences of the batch of these updates."""
SEQUENCE_BYTES = 128 << 20
"""Free memory for each of these sequences without which nothing is measured, and more than the updates take."""
MEASURING_ERROR = 1.15
"""Factor by which a quick measurement may be wrong: updates that are slower by less count as fast enough."""


@dataclass(frozen=True)
class UpdateTimes:
    """The times of updates of `MODELS`, for each token."""

    seconds_per_token: list[float]


def machine_pace(config: Config, num_processes: int = 1) -> Pace:
    """Return the pace at which processes like this one should train as a configuration says.

    The peak and the times of updates are remembered, or measured in about a second.
    """
    peak = _peak_flops()
    usual = usual_pace(num_processes * peak)
    training = _small_batches(config.training)
    execution = _likely_execution(training)
    found = _update_times(config, training, execution, num_processes)
    if found is None:
        return usual
    of_one, measured, is_slow = usual_pace(peak), [], False
    for model, seconds in zip(MODELS, found.seconds_per_token, strict=True):
        in_update = update_flops(model, training.optimizer, execution.dtype)
        flops = flops_per_token(model, training.sequence_length, training.tokens_per_update, in_update)
        expected = of_one.seconds_per_token(flops, model.num_layers)
        is_slow = is_slow or seconds > MEASURING_ERROR * expected
        measured.append((flops, model.num_layers, max(seconds, expected)))
    if not is_slow:
        return usual
    slow = of_one.slowed_to(*measured)
    # Each process computes its share of the tokens.
    return Pace(slow.per_flop / num_processes, max(slow.per_layer / num_processes, usual.per_layer))


def _peak_flops() -> float:
    """Return the peak that is remembered of this machine, or measure it quickly."""
    machine, threads = remembered_machine(), torch.get_num_threads()
    known = [known_rates(Execution(1, precision, threads=threads), machine) for precision in get_args(Precision)]
    return max((rates.peak_flops for rates in known if rates), default=0.0) or _quick_peak()


@functools.cache
def _quick_peak() -> float:
    """Measure the peak briefly, once in a process."""
    return max(measure_peak_flops(dtype, QUICK_PEAK_S) for dtype in PRECISIONS.values())


def _update_times(
    config: Config, training: TrainingConfig, execution: Execution, num_processes: int
) -> UpdateTimes | None:
    """Return the times of updates that are remembered, or measure them; None where they are not known.

    Of several processes none measures, as they are not bound to their cores yet, and others would be idle. With a
    memory budget nothing is measured either: what that takes would count.
    """
    depends_on = {
        "machine": find_hardware().fingerprint,
        "native": [ABI, instructions()],
        "models": [model.shape() for model in MODELS],
        "update": [training.optimizer, training.batch_size, training.sequence_length],
        "execution": asdict(execution),
    }
    place = Remembered(UpdateTimes, "update-times", depends_on)
    found = None if config.run.measure_again else place.read()
    may_measure = num_processes == 1 and not config.training.memory_budget
    if found is None and may_measure and available_memory_bytes() > training.batch_size * SEQUENCE_BYTES:
        found = _measure_updates(execution, training.optimizer, training.batch_size)
        release_freed_memory()
        if found is not None:
            place.write(found)
    return found


@functools.cache
def _measure_updates(execution: Execution, optimizer: Literal["muon", "adamw"], batch_size: int) -> UpdateTimes | None:
    """Time updates of `MODELS`, once in a process; the fastest of each count. None where other programs took part."""
    training = TrainingConfig(optimizer=optimizer, batch_size=batch_size, max_length=MODELS[0].context)
    before = ProcessorTime.now()
    fastest = [_fastest_update(model, training, execution) for model in MODELS]
    if is_disturbed(ProcessorTime.now().taken_percent_since(before)):
        return None
    return UpdateTimes([seconds / training.tokens_per_update for seconds in fastest])


def _fastest_update(model: ModelConfig, training: TrainingConfig, execution: Execution) -> float:
    """Return the seconds of the fastest of some updates of a network."""
    network = build(model).to(best_device())
    step = TrainStep(Replica(network), Optimizer(network, training), execution, training.gradient_clip)
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, (training.batch_size, model.context + 1))
    batch = Batch(0, tokens[:, :-1], tokens[:, 1:])
    step(batch, 1.0)  # makes the state of the optimizer, and starts threads
    taken = [_time(step, batch)]
    while sum(taken) < UPDATES_S:
        taken.append(_time(step, batch))
    return min(taken)


def _time(step: TrainStep, batch: Batch) -> float:
    began = time.perf_counter()
    step(batch, 1.0)
    return time.perf_counter() - began


def _small_batches(training: TrainingConfig) -> TrainingConfig:
    """Return how `MODELS` are trained: as a configuration says, but in batches that suit them."""
    num_sequences = max(LEAST_SEQUENCES, SEQUENCES_PER_THREAD * torch.get_num_threads())
    small = {"batch_size": num_sequences, "max_length": MODELS[0].context, "micro_batch_size": 0, "memory_budget": None}
    return training.model_copy(update=small)


def _likely_execution(training: TrainingConfig) -> Execution:
    """Return the way to compute updates that is likely to be the fastest, of those that a configuration allows."""
    plain = plainest(training, training.batch_size, memory_limit=None)
    if training.engine == "torch" or why_not_native(MODELS[0], training):
        return plain
    return likely_fastest_first(native_ways(plain, training, training.batch_size))[0]
