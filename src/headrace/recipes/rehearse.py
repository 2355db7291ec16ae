"""A rehearsal: two small networks of a config's width are trained for a moment, to tell what the whole will take."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

import numpy as np

from headrace.data.batch import Batch
from headrace.machine.allocator import release_freed_memory
from headrace.machine.facts import memory_bytes
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.linear import has_onednn
from headrace.models.network import Network, build
from headrace.perf.predict import Measured, Rehearsal
from headrace.training.activations import activation_bytes_per_token
from headrace.training.choose import choose
from headrace.training.config import TrainingConfig
from headrace.training.optimizer import Optimizer
from headrace.training.step import Execution, TrainStep, accumulate

LAYERS = (1, 3)
# A pass of the larger network should take about a fifth of a second.
PASS_FLOPS = 3e10
CHOOSING_TOKENS, CHOOSING_SECONDS = 256, 0.5
LEAST_ROUNDS, MOST_ROUNDS, ROUNDS_SECONDS = 2, 9, 1.2


def rehearse(model: ModelConfig, training: TrainingConfig) -> tuple[Rehearsal, Execution]:
    """Measure; also tells how steps would be computed. Leaves nothing behind but warm kernels."""
    first = build(_with_layers(model, LAYERS[0]))
    execution = quick_execution(first, model, training)
    size = _num_sequences(model, training, execution.micro_batch_size)
    execution = replace(execution, micro_batch_size=min(execution.micro_batch_size, size))
    twice = random_batch(model, 2 * size, training.max_length)  # a second forward pass beside the gradients of a first
    _warm_kernels(first, twice, execution, training)
    del first
    release_freed_memory()
    runtime_bytes = memory_bytes()
    networks = [_Rehearsed(_with_layers(model, layers), training, execution, twice) for layers in LAYERS]
    _take_turns(networks, twice.rows(slice(0, size)))
    small, large = (network.measured() for network in networks)
    micro_batch_size = training.micro_batch_size or default_micro_batch(training)
    return Rehearsal(size, small, large, runtime_bytes), replace(execution, micro_batch_size=micro_batch_size)


def _warm_kernels(network: Network, batch: Batch, execution: Execution, training: TrainingConfig) -> None:
    """Each keeps buffers of the size that it was used with; training tries both before it chooses."""
    both = training.matmul == "auto" and has_onednn()
    for use_onednn in (False, True) if both else (execution.use_onednn,):
        way = replace(execution, use_onednn=use_onednn)
        way.apply_to(network)
        accumulate(network, batch, way, {"forward": 0.0, "backward": 0.0})


class _Rehearsed:
    """A small network that takes steps, how long they take, and how much memory it took to begin with."""

    def __init__(self, model: ModelConfig, training: TrainingConfig, execution: Execution, twice: Batch) -> None:
        release_freed_memory()
        before = memory_bytes()
        self._execution = execution
        self._network = build(model)
        step = TrainStep(self._network, Optimizer(self._network, training), execution, 1.0)
        step(twice, 1.0)  # pays for fresh memory
        self._grown_bytes = memory_bytes() - before  # freed memory is kept, so this is the peak
        self._update_s = step(twice.rows(slice(0, 1)), 1.0).seconds["optimizer"]
        self._passes_s: list[float] = []

    def compute(self, batch: Batch) -> None:
        seconds = {"forward": 0.0, "backward": 0.0}
        self._execution.apply_to(self._network)
        accumulate(self._network, batch, self._execution, seconds)
        self._network.zero_grad(set_to_none=True)
        self._passes_s.append(sum(seconds.values()))

    def measured(self) -> Measured:
        return Measured(
            self._network.config.num_layers,
            median(self._passes_s),
            self._update_s,
            activation_bytes_per_token(self._network, self._execution.precision),
            self._grown_bytes,
        )


def _with_layers(model: ModelConfig, num_layers: int) -> ModelConfig:
    return model.model_copy(update={"num_layers": num_layers})


def warm_up() -> None:
    """A step of a tiny network: what torch loads for its first backward pass and optimizer is then there."""
    model = ModelConfig(d_model=64, num_layers=1, vocab_size=64, context=64)
    training = TrainingConfig(batch_size=2, max_length=64)
    network = build(model)
    for use_onednn in {False, has_onednn()}:
        execution = Execution(2, use_onednn=use_onednn)
        TrainStep(network, Optimizer(network, training), execution, 1.0)(random_batch(model, 2, 64), 1.0)


def _take_turns(networks: list[_Rehearsed], batch: Batch) -> None:
    """So that what slows the machine slows all of them."""
    began = time.perf_counter()
    for number in range(MOST_ROUNDS):
        for network in networks:
            network.compute(batch)
        if number + 1 >= LEAST_ROUNDS and time.perf_counter() - began > ROUNDS_SECONDS:
            break


def quick_execution(network: Network, model: ModelConfig, training: TrainingConfig) -> Execution:
    """As training chooses it, but on few tokens, and with the micro-batch that it would measure the ways with."""
    size = training.micro_batch_size or default_micro_batch(training)
    rows = min(size, max(1, CHOOSING_TOKENS // training.max_length))
    few = training.model_copy(update={"micro_batch_size": rows, "batch_size": rows, "compile": False})
    chosen = choose(network, random_batch(model, rows, training.max_length), few, seconds=CHOOSING_SECONDS)
    return replace(chosen, micro_batch_size=size, gradient_checkpointing=training.gradient_checkpointing)


def default_micro_batch(training: TrainingConfig, most_tokens: int = 2048) -> int:
    """A divisor of the batch that is near what training measures to be fastest.

    >>> default_micro_batch(TrainingConfig(batch_size=12, max_length=256))
    6
    """
    sizes = [size for size in range(1, training.batch_size + 1) if training.batch_size % size == 0]
    return max((size for size in sizes if size * training.max_length <= most_tokens), default=1)


def _num_sequences(model: ModelConfig, training: TrainingConfig, micro_batch_size: int) -> int:
    """A whole micro-batch, or as much of it as is quick."""
    counts = count(_with_layers(model, max(LAYERS)), training.max_length)
    quick = int(PASS_FLOPS / (counts.training_flops_per_token * training.max_length))
    return max(1, min(micro_batch_size, quick))


def random_batch(model: ModelConfig, rows: int, length: int, seed: int = 0) -> Batch:
    tokens = np.random.default_rng(seed).integers(0, model.vocab_size, (rows, length + 1))
    return Batch(0, tokens[:, :-1], tokens[:, 1:])
