"""Loss, perplexity and bits per byte on the same tokens every time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from headrace.data.batch import Batch
from headrace.data.byte_counts import bytes_per_id
from headrace.data.loader import Loader
from headrace.models.network import Network
from headrace.training.step import autocast, batch_loss


@dataclass(frozen=True)
class Evaluation:
    """How well a network predicts the validation part."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    num_tokens: int
    num_bytes: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700))


class Evaluator:
    """Keeps the validation rows, so that every evaluation sees the same ones."""

    def __init__(self, loader: Loader, max_tokens: int, precision: str) -> None:
        rows = loader.ledger()[0].rows
        wanted = -(-max_tokens // loader.sequence_length) if max_tokens else rows
        steps = -(-min(rows, wanted) // loader.batch_size)
        self._batches: list[Batch] = []
        left = min(rows, wanted)
        for _ in range(steps):
            batch = next(loader)
            kept = batch.rows(slice(0, min(left, len(batch.inputs))))
            left -= len(kept.inputs)
            self._batches.append(kept)
        self._byte_lengths = bytes_per_id(loader.cache)
        self._precision = precision

    def __call__(self, network: Network, micro_batch_size: int) -> Evaluation:
        """Rows go through in micro-batches: nothing is kept for a backward pass, so memory is no concern."""
        total, num_tokens, num_bytes = 0.0, 0, 0
        with torch.no_grad(), autocast(network, self._precision):
            for batch in self._batches:
                for start in range(0, len(batch.inputs), micro_batch_size):
                    total += float(batch_loss(network, batch, slice(start, start + micro_batch_size), 1.0))
                targets = batch.targets if batch.mask is None else batch.targets[batch.mask]
                num_tokens += targets.size
                num_bytes += int(self._byte_lengths[targets.astype(np.int64)].sum())
        loss = total / max(num_tokens, 1)
        return Evaluation(loss, total / math.log(2) / max(num_bytes, 1), num_tokens, num_bytes)
