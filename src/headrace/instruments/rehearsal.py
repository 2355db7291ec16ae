"""Rehearsals: the network of a run takes steps for a few seconds, some of them without their matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median_low

import numpy as np
import torch

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.instruments.dry_steps import WithoutProducts
from headrace.machine.allocator import release_freed_memory
from headrace.machine.device import best_device
from headrace.machine.facts import memory_bytes
from headrace.models.candidates import Candidates
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.linear import has_onednn
from headrace.models.network import build
from headrace.perf.predict import ByLayers, Footprint, Rehearsal
from headrace.training.autotune import choose_execution
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.optimizers import assignment
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.optimizers.related import usual_parts
from headrace.training.showing.presentation import AS_IT_IS, Presentation
from headrace.training.step import TrainStep, accumulate
from headrace.training.ways.activations import activation_bytes_per_token, native_bytes_per_token
from headrace.training.ways.alternatives import candidate_sizes, default_micro_batch

FEW_LAYERS = 3
# QUICK_FLOPS take a third of a second on two cores; one sequence or one update may take twice that.
QUICK_FLOPS, MOST_FLOPS = 6e10, 1.2e11
LEAST_ROUNDS, MOST_ROUNDS, ROUNDS_SECONDS = 2, 9, 1.2
# Memory settles within two or three steps; where a step takes long, one must be enough.
MOST_DRY_STEPS, DRY_SECONDS, LONG_DRY_SECONDS = 4, 0.9, 3.0
CHOOSING_TOKENS, CHOOSING_SECONDS = 256, 0.3


def rehearse(model: ModelConfig, training: TrainingConfig, execution: Execution) -> tuple[Rehearsal, Footprint]:
    """Measure time and memory of the whole network, which has to fit the machine.

    Memory is measured by dry steps of the real network: it depends on every tensor that is allocated and freed, and
    cannot be extrapolated from a smaller one. They also pay for fresh memory before anything is timed.
    """
    release_freed_memory()
    runtime_bytes = memory_bytes()
    stage = _Stage(model, training, execution)
    most_bytes, largest = 0, max(candidate_sizes(training.batch_size, training.sequence_length))
    if (
        execution.engine == "torch" and not training.micro_batch_size and largest > execution.micro_batch_size
    ):  # training tries them all beforehand
        stage.take_dry_passes(largest)
        most_bytes = memory_bytes()
        release_freed_memory()
    rows = min(
        training.batch_size, 2 * execution.micro_batch_size
    )  # a second pass, beside the gradients of the first, holds the most
    if not stage.is_dry:  # so that the optimizer's state is there, even if only one more step is taken
        stage.take_dry_step(1)
    began = time.perf_counter()
    for number in range(MOST_DRY_STEPS):
        stage.take_dry_step(rows)
        if time.perf_counter() - began > (DRY_SECONDS if number else LONG_DRY_SECONDS):
            break
    grown_bytes = max(most_bytes, memory_bytes()) - runtime_bytes  # freed memory is kept, so these are peaks
    per_token = activation_bytes_per_token(stage.network, execution, training.sequence_length)
    return stage.time_steps(), Footprint(runtime_bytes, per_token, grown_bytes)


def rehearse_few_layers(
    model: ModelConfig, training: TrainingConfig, execution: Execution
) -> tuple[Rehearsal, Footprint]:
    """Measure only a few layers of a network that is too large to be built, and extrapolate its activations."""
    runtime_bytes = memory_bytes()
    stage = _Stage(model, training, execution, most_layers=FEW_LAYERS)
    if execution.engine == "native":  # planned, so known without building anything
        per_token = native_bytes_per_token(model, execution, training.sequence_length)
    else:
        per_token = activation_bytes_per_token(stage.network, execution, training.sequence_length)
        per_token *= model.num_layers / stage.network.config.num_layers
    stage.take_dry_step(1)  # makes the optimizer's state
    return stage.time_steps(), Footprint(runtime_bytes, per_token)


class _Stage:
    """A network, or its first layers, and an optimizer to take steps with."""

    def __init__(
        self, model: ModelConfig, training: TrainingConfig, execution: Execution, most_layers: int | None = None
    ) -> None:
        self._model = model
        few = _with_layers(model, min(most_layers or model.num_layers, model.num_layers))
        self.network = build(few).to(best_device())
        self._replica = Replica(self.network)
        self._blocks = self.network.blocks
        self._optimizer = Optimizer(self.network, training, usual_parts(training, model.vocab_size))
        self._training = training
        self._execution = execution
        execution.set_threads()
        self._num_logits = training.num_logits(model.vocab_size)
        self._presentation = comparing_first(self._num_logits, model.vocab_size)

    def _batch(self, rows: int) -> Batch:
        """Return random tokens that a loss over so many tokens as in training can be computed of."""
        return random_batch(self._model, rows, self._training.sequence_length, num_tokens=self._num_logits)

    def take_dry_step(self, rows: int) -> None:
        """Take a whole update, without its matrix products where possible."""
        batch = self._batch(rows)
        with self._dry() as execution:
            TrainStep(self._replica, self._optimizer, execution, 1.0)(batch, 1.0, self._presentation)

    def take_dry_passes(self, rows: int) -> None:
        """Compute forward and backward of all rows at once, without matrix products where possible."""
        batch = self._batch(rows)
        with self._dry() as execution:
            execution = replace(execution, micro_batch_size=rows)
            accumulate(self._replica, batch, execution, presentation=self._presentation)
        self.network.zero_grad(set_to_none=True)

    @property
    def is_dry(self) -> bool:
        """Whether matrix products can be left out of steps."""
        execution = self._execution
        is_torch = execution.engine == "torch" and execution.precision == "float32"
        return is_torch and has_onednn() and best_device().type == "cpu"

    @contextmanager
    def _dry(self) -> Iterator[Execution]:
        """Yield the execution to use while matrix products are left out, where they can be (dry_steps.py)."""
        if self.is_dry:
            with WithoutProducts():
                yield replace(self._execution, matmul="onednn")
        else:
            yield self._execution

    def time_steps(self) -> Rehearsal:
        """Time passes and updates in turns, so that noise hits both."""
        model, sequence_length = self._model, self._training.sequence_length

        def sequence_flops(depth: int) -> float:
            counts = count(_with_layers(model, depth), sequence_length, self._num_logits)
            return sequence_length * counts.training_flops_per_token

        def update_flops(depth: int) -> float:
            few = _with_layers(model, depth)
            return sum(assignment.update_flops(few, self._training.optimizer, self._execution.dtype).values())

        layers = len(self._blocks), model.num_layers
        passes: dict[int, list[float]] = {depth: [] for depth in _quick_depths(*layers, sequence_flops)}
        updates: dict[int, list[float]] = {depth: [] for depth in _quick_depths(*layers, update_flops)}
        # Native threads compute whole sequences: with fewer of them, some would be idle.
        least = torch.get_num_threads() if self._execution.engine == "native" else 1
        size = min(self._execution.micro_batch_size, max(least, int(QUICK_FLOPS / sequence_flops(max(passes)))))
        batch = self._batch(size)
        began = time.perf_counter()
        for number in range(MOST_ROUNDS):
            has_time = number == 0 or time.perf_counter() - began < ROUNDS_SECONDS
            if number >= LEAST_ROUNDS and not has_time:
                break
            for depth, times in passes.items():
                times.append(self._time_passes(depth, batch))
            for depth, times in updates.items() if has_time else ():
                times.append(self._time_update(depth))
        return Rehearsal(size, _by_layers(passes), _by_layers(updates))

    def _time_passes(self, depth: int, batch: Batch) -> float:
        self.network.zero_grad(set_to_none=True)
        self.network.blocks = self._blocks[:depth]
        began = time.perf_counter()
        shown = replace(self._presentation, window=self._training.usual_window)
        accumulate(self._replica, batch, self._execution, presentation=shown)
        seconds = time.perf_counter() - began
        self.network.blocks = self._blocks
        return seconds

    def _time_update(self, depth: int) -> float:
        """Time an update of embedding, head and some layers; the values of the gradients do not matter."""
        beyond = set(self._blocks[depth:].parameters())
        for parameter in self.network.parameters():
            parameter.grad = None if parameter in beyond else torch.ones_like(parameter)
        began = time.perf_counter()
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimizer.step(1.0, self._execution)
        if norm.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began


def _by_layers(times: dict[int, list[float]]) -> ByLayers:
    # The faster of two passes: the first one prepares kernels.
    return ByLayers({depth: median_low(measured) for depth, measured in times.items()})


def _quick_depths(num_built: int, num_layers: int, flops: Callable[[int], float]) -> list[int]:
    """Return the depths to time: all layers if that is quick, else none and a few, to extrapolate from."""
    candidates = [depth for depth in (1, 2, FEW_LAYERS, num_built) if depth <= num_built]
    deepest = max((depth for depth in candidates if flops(depth) <= MOST_FLOPS), default=1)
    return [deepest] if deepest == num_layers else [0, deepest]


def _with_layers(model: ModelConfig, num_layers: int) -> ModelConfig:
    return model.model_copy(update={"num_layers": num_layers})


def warm_up() -> None:
    """Take a step of a tiny network, so that what torch loads for its first step is loaded."""
    model = ModelConfig(d_model=64, num_layers=1, vocab_size=64, context=64)
    training = TrainingConfig(batch_size=2, max_length=64)
    network = build(model)
    for execution in (Execution(2), Execution(2, matmul="onednn"))[: 1 + has_onednn()]:
        TrainStep(Replica(network), Optimizer(network, training), execution, 1.0)(random_batch(model, 2, 64), 1.0)


def quick_execution(model: ModelConfig, training: TrainingConfig) -> Execution:
    """Choose an execution as training does, but on few tokens and with a default micro-batch.

    The network has one layer and a share of the vocabulary, so that layers and head keep their proportion.
    """
    size = training.micro_batch_size or default_micro_batch(training.batch_size, training.sequence_length)
    # Native threads compute whole sequences: with fewer of them, some would be idle.
    rows = min(size, max(torch.get_num_threads(), CHOOSING_TOKENS // training.sequence_length))
    few = training.model_copy(update={"micro_batch_size": rows, "batch_size": rows, "compile": False})
    vocab_size = max(2, training.num_logits(model.vocab_size) // model.num_layers)
    small = model.model_copy(update={"num_layers": 1, "vocab_size": vocab_size})
    batch = random_batch(small, rows, training.sequence_length)
    chosen = choose_execution(build(small).to(best_device()), batch, few, seconds=CHOOSING_SECONDS)
    if chosen.engine == "native":
        size = training.micro_batch_size or training.batch_size
    return replace(chosen, micro_batch_size=size, gradient_checkpointing=training.gradient_checkpointing)


def random_batch(
    model: ModelConfig, rows: int, sequence_length: int, seed: int = 0, num_tokens: int | None = None
) -> Batch:
    """Return a batch of random tokens, all of them among the first `num_tokens` of the vocabulary."""
    tokens = np.random.default_rng(seed).integers(0, num_tokens or model.vocab_size, (rows, sequence_length + 1))
    return Batch(0, tokens[:, :-1], tokens[:, 1:])


def comparing_first(num_tokens: int, vocab_size: int) -> Presentation:
    """Return how batches are shown whose loss compares the first `num_tokens` of a vocabulary."""
    if num_tokens == vocab_size:
        return AS_IT_IS
    offsets, places = np.zeros(num_tokens, dtype=np.float32), np.arange(vocab_size, dtype=np.int32)
    return Presentation(candidates=Candidates(np.arange(num_tokens), offsets, places))
