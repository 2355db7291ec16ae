"""Loss, perplexity and bits per byte on the validation part, or on a sample of it that is the same every time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from headrace.data.batch import Batch
from headrace.data.cache.byte_counts import bytes_per_id
from headrace.data.loader import Loader
from headrace.data.sample import Sample
from headrace.distributed.replicas import Replica
from headrace.models.network import Network
from headrace.native.engine import NativeStep
from headrace.training.execution import Execution
from headrace.training.step import batch_loss
from headrace.training.ways.alternatives import FEWEST_TOKENS

PROBE_TOKENS = 4096
"""Tokens of a micro-batch without gradients: large enough for full speed, small enough for the processor's caches."""


@dataclass(frozen=True)
class Evaluation:
    """Measures of how well a network predicts the validation part."""

    loss: float
    """Nats per token; for a mixture, the mean over its sources, weighted by their shares."""
    bits_per_byte: float
    num_tokens: int
    num_bytes: int
    sources: dict[str, float | None] = field(default_factory=dict)
    """Loss on each source, if the corpus has several; None for a source without validation text."""
    is_whole: bool = False
    """Whether this is all of the validation part, and not a sample of it."""

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.exp(min(self.loss, 700))


class Evaluator:
    """The validation part of a corpus. A sample of a given size has the same rows every time."""

    def __init__(self, loader: Loader, execution: Execution, has_memory: bool = True) -> None:
        """`has_memory`: whether forward passes may take larger micro-batches than training, which keeps gradients."""
        self._loader = loader
        self._byte_lengths = bytes_per_id(loader.cache)
        self._has_memory = has_memory
        self._trained = execution
        self._execution = self._for_forward_passes(execution)
        self._drawn: tuple[int, list[Sample]] = (-1, [])

    def use(self, execution: Execution) -> None:
        """Compute evaluations from now on as training steps are; micro-batches that were larger stay so."""
        self._trained = execution
        execution = self._for_forward_passes(execution)
        size = execution.micro_batch_size
        if self._has_memory:
            size = max(size, self._execution.micro_batch_size)
        self._execution = replace(execution, micro_batch_size=size)

    def texts(self, num_rows: int) -> list[str]:
        """Return the text of some rows, the same every time; special tokens and padding are left out."""
        tokenizer = self._loader.cache.tokenizer
        special = list(tokenizer.special_tokens.values())
        batches = [sample.batch for sample in self._loader.sample(PROBE_TOKENS) if sample.batch is not None]
        rows = [row for batch in batches for row in batch.inputs[:num_rows]]
        return [tokenizer.decode(row[~np.isin(row, special)]) for row in rows[:num_rows]]

    def count(self, max_tokens: int) -> int:
        """Return the number of tokens that are predicted in an evaluation on about `max_tokens` (0: all)."""
        return sum(sample.batch.num_tokens for sample in self._draw(max_tokens) if sample.batch is not None)

    @property
    def num_tokens(self) -> int | None:
        """Number of tokens of the whole part; None while it is being tokenised."""
        rows = self._loader.num_rows
        return None if rows is None else rows * self._loader.sequence_length

    def measure(self, network: Network, seconds: float, replica: Replica | None = None) -> float:
        """Measure the seconds per token, and choose the fastest of the micro-batches that can be tried in this time."""
        batch = next((sample.batch for sample in self._draw(PROBE_TOKENS) if sample.batch is not None), None)
        if batch is None:
            return 0.0
        step = self._native_step(replica)
        if step is not None:
            return _measure_natively(step, batch, seconds)
        trained, length = self._execution.micro_batch_size, batch.inputs.shape[1]
        most = min(len(batch.inputs), max(trained, PROBE_TOKENS // length) if self._has_memory else trained)
        began = time.perf_counter()
        self._time(network, batch, 1)  # the first time pays for fresh memory
        seconds_per_token = {1: self._time(network, batch, 1)}
        size = 2
        while size <= most:
            expected_s = size * length * min(seconds_per_token.values())
            if time.perf_counter() - began + expected_s > seconds:
                break
            seconds_per_token[size] = self._time(network, batch, size)
            size *= 2
        best = min(seconds_per_token, key=lambda size: seconds_per_token[size])
        self._execution = replace(self._execution, micro_batch_size=max(best, trained))
        return seconds_per_token[best]

    def __call__(
        self, network: Network, max_tokens: int, replica: Replica | None = None, window: int = 0
    ) -> Evaluation:
        """Return the loss on a sample of about `max_tokens`, or for 0 on the whole part, and what follows from it.

        `replica`: the one that trains the network; where its steps are native, so is this, in the same memory unless
        they compare a part of the vocabulary. `window`: tokens that the network sees at once; 0: whole sequences.
        """
        step = self._native_step(replica)
        measured = [(sample, self._measure(network, sample.batch, step, window)) for sample in self._draw(max_tokens)]
        found = [(sample, result) for sample, result in measured if result.num_tokens]
        losses = {sample.source: result.loss if result.num_tokens else None for sample, result in measured}
        # In a mixture each source counts by its weight, however many rows of it the sample has.
        weights = [result.num_tokens if sample.weight is None else sample.weight for sample, result in found]
        loss = _mean([result.loss for _, result in found], weights)
        bytes_per_token = _mean([result.num_bytes / result.num_tokens for _, result in found], weights)
        num_tokens = sum(result.num_tokens for _, result in found)
        return Evaluation(
            loss,
            loss / math.log(2) / max(bytes_per_token, 1 / num_tokens),
            num_tokens,
            sum(result.num_bytes for _, result in found),
            losses if len(losses) > 1 else {},
            is_whole=self._is_whole(max_tokens),
        )

    def is_same(self, some_tokens: int, other_tokens: int) -> bool:
        """Return whether two sample sizes give the same rows, as sizes beyond the whole part do."""
        return some_tokens == other_tokens or (self._is_whole(some_tokens) and self._is_whole(other_tokens))

    def close(self) -> None:
        """Close the validation part."""
        self._loader.close()

    def _for_forward_passes(self, execution: Execution) -> Execution:
        """Return the execution of forward passes alone: never compiled, which takes longer than it saves, by torch."""
        if execution.engine == "torch":
            return replace(execution, compile=False)
        most = (PROBE_TOKENS if self._has_memory else FEWEST_TOKENS) // self._loader.sequence_length
        size = max(1, min(execution.micro_batch_size, most))  # natively, it is the whole batch
        return replace(execution, engine="torch", micro_batch_size=size, attention="products")

    def _native_step(self, replica: Replica | None) -> NativeStep | None:
        """Return the native step to evaluate by; None: PyTorch evaluates, as always where memory is short."""
        if replica is None or self._trained.engine != "native" or not self._has_memory:
            return None
        return replica.native_step(self._trained.precision, torch.get_num_threads())

    def _is_whole(self, max_tokens: int) -> bool:
        known = self.num_tokens
        return not max_tokens or (known is not None and max_tokens >= known)

    def _draw(self, max_tokens: int) -> list[Sample]:
        """Return the rows of an evaluation; those of the newest one are kept."""
        wanted = 0 if self._is_whole(max_tokens) else max_tokens
        if self._drawn[0] != wanted:
            self._drawn = (wanted, self._loader.sample(wanted))
        return self._drawn[1]

    def _time(self, network: Network, batch: Batch, size: int) -> float:
        """Measure the seconds per token of forward passes in micro-batches of `size` rows."""
        part = batch.rows(slice(0, size))
        began = time.perf_counter()
        _sum_losses(network, part, replace(self._execution, micro_batch_size=size))
        return (time.perf_counter() - began) / part.inputs.size

    def _measure(self, network: Network, batch: Batch | None, step: NativeStep | None, window: int) -> _Measured:
        """Compute the loss on one source in micro-batches."""
        if batch is None:
            return _Measured(0.0, 0, 0)
        total = 0.0
        for part in in_windows(batch, window):
            total += _sum_losses_natively(step, part) if step else _sum_losses(network, part, self._execution)
        targets = batch.targets if batch.mask is None else batch.targets[batch.mask]
        num_bytes = int(self._byte_lengths[targets.astype(np.int64)].sum())
        return _Measured(total / max(targets.size, 1), targets.size, num_bytes)


@dataclass(frozen=True)
class _Measured:
    """The loss on one source of the validation part, and the size of its sample."""

    loss: float
    num_tokens: int
    num_bytes: int


def in_windows(batch: Batch, window: int) -> list[Batch]:
    """Return a batch with its sequences cut into windows, and another with what is left of them; 0: as it is."""
    length = batch.inputs.shape[1]
    if not 0 < window < length:
        return [batch]
    whole = length - length % window
    windows = batch.map(lambda array: array[:, :whole].reshape(-1, window))
    return [windows, batch.map(lambda array: array[:, whole:])] if whole < length else [windows]


def _sum_losses(network: Network, batch: Batch, execution: Execution) -> float:
    replica, size, total = Replica(network), execution.micro_batch_size, 0.0
    with torch.no_grad(), execution.autocast(network.device):
        for start in range(0, len(batch.inputs), size):
            total += float(batch_loss(replica, batch, slice(start, start + size), 1.0, execution.kernels))
    return total


def _sum_losses_natively(step: NativeStep, batch: Batch) -> float:
    total, size = 0.0, step.rows_at_once(batch.inputs.shape[1])
    for start in range(0, len(batch.inputs), size):
        part = batch.rows(slice(start, start + size))
        total += step.loss(part.inputs, part.targets, part.documents, part.mask)
    return total


def _measure_natively(step: NativeStep, batch: Batch, seconds: float) -> float:
    """Measure the seconds per token of rows that are computed at a time, or if that takes too long of a few."""
    began = time.perf_counter()
    token_s = 0.0
    for size in (torch.get_num_threads(), step.rows_at_once(batch.inputs.shape[1])):
        part = batch.rows(slice(0, size))
        if token_s and time.perf_counter() - began + 2 * token_s * part.inputs.size > seconds:
            break
        _sum_losses_natively(step, part)  # the first time pays for fresh memory
        started = time.perf_counter()
        _sum_losses_natively(step, part)
        token_s = (time.perf_counter() - started) / part.inputs.size
    return token_s


def _mean(values: list[float], weights: Sequence[float]) -> float:
    """Return the weighted mean; where all weights are 0, as of sources that a schedule has left, the plain one."""
    weights = weights if any(weights) else [1.0] * len(values)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
