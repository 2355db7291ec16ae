"""Judging a trained model: bits per byte of the held-out text, every byte of it, in windows of one length for all.

A network whose positions are learned has none beyond its context. It is judged in windows of its own context, and the
result says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.models.architecture import find_architecture
from headrace.models.config import ModelConfig
from headrace.models.network import Network
from headrace.run.saved_model import load_trained
from headrace.training.evaluate import PROBE_TOKENS
from headrace.training.step import batch_loss


@dataclass(frozen=True)
class Judgement:
    """How well a saved model predicts the held-out text."""

    bits_per_byte: float
    context: int
    """Tokens of the windows: those asked for, or fewer where positions are learned and end before."""
    own_bits_per_byte: float
    """The same in windows of the length that the model was trained with."""
    own_context: int
    num_bytes: int
    note: str = ""


def judge(run: Path, texts: Sequence[str], context: int, own_context: int) -> Judgement:
    """Judge the best checkpoint of a run on these documents."""
    trained = load_trained(run)
    tokenizer, network = trained.tokenizer, trained.network
    end = np.array([tokenizer.end_of_text_id], dtype=np.int64)
    pieces = [end]  # before the first document, so that its first token is predicted too
    for text in texts:
        pieces += [tokenizer.encode(text).astype(np.int64), end]
    tokens = np.concatenate(pieces)
    num_bytes = sum(len(text.encode()) for text in texts)
    limit = longest_window(network.config)
    length = min(context, limit) if limit else context

    def bits_per_byte(window: int) -> float:
        return sum_losses(network, tokens, window) / math.log(2) / num_bytes

    found = bits_per_byte(length)
    own = found if own_context == length else bits_per_byte(own_context)
    note = f"learned positions end at {limit}: judged in windows of {length}" if length < context else ""
    return Judgement(found, length, own, own_context, num_bytes, note)


def longest_window(model: ModelConfig) -> int:
    """Return the longest window that a network can take; 0: any. Learned positions end somewhere."""
    return model.context if find_architecture(model.arch).is_context_fixed else 0


def sum_losses(network: Network, tokens: npt.NDArray[np.int64], window: int) -> float:
    """Return the sum of the losses, in nats, of all tokens but the first, in windows one after the other."""
    whole = (len(tokens) - 1) // window * window
    parts = [(tokens[:whole].reshape(-1, window), tokens[1 : whole + 1].reshape(-1, window))] if whole else []
    if whole < len(tokens) - 1:
        parts.append((tokens[None, whole:-1], tokens[None, whole + 1 :]))
    replica, total = Replica(network), 0.0
    size = max(1, PROBE_TOKENS // window)
    with torch.no_grad():
        for inputs, targets in parts:
            batch = Batch(0, inputs, targets)
            for start in range(0, len(inputs), size):
                total += float(batch_loss(replica, batch, slice(start, start + size), 1.0))
    return total
