"""Loss, perplexity and bits per byte on the same sample of the validation part every time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from headrace.data.batch import Batch
from headrace.data.cache.byte_counts import bytes_per_id
from headrace.data.loader import Loader
from headrace.distributed.replicas import Replica
from headrace.models.network import Network
from headrace.training.execution import Execution
from headrace.training.step import batch_loss


@dataclass(frozen=True)
class Evaluation:
    """Measures of how well a network predicts the validation part."""

    loss: float
    """Nats per token; for a mixture, the mean over its sources, weighted by their shares."""
    bits_per_byte: float
    num_tokens: int
    num_bytes: int
    sources: dict[str, float | None] = field(default_factory=dict)
    """Loss on each source of a corpus of several; None: nothing of it is in the validation part."""

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.exp(min(self.loss, 700))


class Evaluator:
    """A fixed sample of the validation part: every evaluation sees the same rows."""

    def __init__(self, loader: Loader, max_tokens: int, execution: Execution) -> None:
        self._samples = loader.sample(max_tokens)
        self._byte_lengths = bytes_per_id(loader.cache)
        self.use(execution)

    def use(self, execution: Execution) -> None:
        """Compute evaluations from now on in this way, as far as it is about forward passes."""
        self._execution = replace(execution, compile=False)  # compiling for a few passes takes longer than it saves

    @property
    def num_tokens(self) -> int:
        """Number of tokens that are predicted in an evaluation."""
        return sum(sample.batch.num_tokens for sample in self._samples if sample.batch is not None)

    def __call__(self, network: Network) -> Evaluation:
        """Evaluate a network."""
        measured = [(sample, self._measure(network, sample.batch)) for sample in self._samples]
        found = [(sample, result) for sample, result in measured if result.num_tokens]
        losses = {sample.source: result.loss if result.num_tokens else None for sample, result in measured}
        # In a mixture each source counts by its weight, however many rows of it the sample has.
        weights = [result.num_tokens if sample.weight is None else sample.weight for sample, result in found]
        loss = _mean([result.loss for _, result in found], weights)
        bytes_per_token = _mean([result.num_bytes / result.num_tokens for _, result in found], weights)
        return Evaluation(
            loss,
            loss / math.log(2) / max(bytes_per_token, 1 / self.num_tokens),
            sum(result.num_tokens for _, result in found),
            sum(result.num_bytes for _, result in found),
            losses if len(losses) > 1 else {},
        )

    def _measure(self, network: Network, batch: Batch | None) -> _Measured:
        """Compute the loss on one source in micro-batches."""
        if batch is None:
            return _Measured(0.0, 0, 0)
        replica, execution, size = Replica(network), self._execution, self._execution.micro_batch_size
        total = 0.0
        with torch.no_grad(), execution.autocast(network.device):
            for start in range(0, len(batch.inputs), size):
                total += float(batch_loss(replica, batch, slice(start, start + size), 1.0, execution.kernels))
        targets = batch.targets if batch.mask is None else batch.targets[batch.mask]
        num_bytes = int(self._byte_lengths[targets.astype(np.int64)].sum())
        return _Measured(total / max(targets.size, 1), targets.size, num_bytes)


@dataclass(frozen=True)
class _Measured:
    """The loss on one source of the validation part, and the size of its sample."""

    loss: float
    num_tokens: int
    num_bytes: int


def _mean(values: list[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
