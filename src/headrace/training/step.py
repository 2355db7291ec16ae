"""One update: micro-batches forward and backward, clip, check, step. Also: how large a micro-batch should be."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.models.loss import head_loss
from headrace.models.network import Network
from headrace.training.optimizer import Optimizer


class TokenBatch(Protocol):
    """What a step needs of a batch; the data engine's `Batch` is one."""

    @property
    def inputs(self) -> npt.NDArray[Any]: ...
    @property
    def targets(self) -> npt.NDArray[Any]: ...
    @property
    def documents(self) -> npt.NDArray[np.int32] | None: ...
    @property
    def mask(self) -> npt.NDArray[np.bool_] | None: ...
    @property
    def num_tokens(self) -> int: ...


@dataclass
class StepResult:
    """What an update did."""

    loss: float
    gradient_norm: float
    is_finite: bool
    seconds: dict[str, float] = field(default_factory=dict)
    """Where its time went: forward (with the head's loss and its gradients), backward, optimizer."""


def autocast(precision: str, device: str = "cpu") -> AbstractContextManager[Any]:
    return torch.autocast(device, dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()


def batch_loss(network: Network, batch: TokenBatch, rows: slice, scale: float) -> Tensor:
    """scale x the sum of the losses of some rows."""
    device = network.head_weight_VD.device
    inputs = torch.from_numpy(batch.inputs[rows].astype(np.int64)).to(device)
    targets = torch.from_numpy(batch.targets[rows].astype(np.int64)).to(device)
    documents = None if batch.documents is None else torch.from_numpy(batch.documents[rows]).to(device)
    mask = None if batch.mask is None else torch.from_numpy(batch.mask[rows]).to(device).flatten()
    hidden = network(inputs, documents)
    return head_loss(hidden.flatten(0, 1), network.head_weight_VD, targets.flatten(), mask, scale)


class TrainStep:
    """Turns batches into updates."""

    def __init__(
        self, network: Network, optimizer: Optimizer, micro_batch_size: int, gradient_clip: float, precision: str
    ) -> None:
        self._network = network
        self._optimizer = optimizer
        self._micro_batch_size = micro_batch_size
        self._clip = gradient_clip or float("inf")
        self._precision = precision

    def __call__(self, batch: TokenBatch, learning_rate_factor: float) -> StepResult:
        seconds = {"forward": 0.0, "backward": 0.0}
        loss = self.accumulate(batch, seconds)
        began = time.perf_counter()
        norm = float(torch.nn.utils.clip_grad_norm_(self._network.parameters(), self._clip))
        is_finite = bool(np.isfinite(norm) and np.isfinite(loss))
        if is_finite:  # a NaN never reaches the weights
            self._optimizer.step(learning_rate_factor)
        self._network.zero_grad(set_to_none=True)
        seconds["optimizer"] = time.perf_counter() - began
        return StepResult(loss, norm, is_finite, seconds)

    def accumulate(self, batch: TokenBatch, seconds: dict[str, float]) -> float:
        """Gradients of the mean loss over all targets of the batch, whatever the micro-batches."""
        scale = 1.0 / max(batch.num_tokens, 1)
        loss = 0.0
        for start in range(0, len(batch.inputs), self._micro_batch_size):
            began = time.perf_counter()
            with autocast(self._precision):
                part = batch_loss(self._network, batch, slice(start, start + self._micro_batch_size), scale)
            middle = time.perf_counter()
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
            seconds["forward"] += middle - began
            seconds["backward"] += time.perf_counter() - middle
        return loss


def candidate_sizes(batch_size: int) -> list[int]:
    """Micro-batches that divide the batch, from small to large.

    >>> candidate_sizes(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [size for size in range(1, batch_size + 1) if batch_size % size == 0]


def choose_micro_batch(
    batch_size: int, measure: Callable[[int], float], fits: Callable[[], bool], num_repeats: int = 2
) -> int:
    """The fastest micro-batch that fits. `measure(size)` gives seconds per sequence; sizes take turns."""
    sizes = [size for size in candidate_sizes(batch_size) if size >= min(2, batch_size)] or [1]
    if len(sizes) > 5:  # spread over the range
        sizes = sorted({sizes[round(i * (len(sizes) - 1) / 4)] for i in range(5)})
    times: dict[int, list[float]] = {}
    for size in sizes:
        measure(size)  # the first time pays for fresh memory
        if not fits():
            break
        times[size] = []
    for _ in range(num_repeats):
        for size, seen in times.items():
            seen.append(measure(size))
    return min(times, key=lambda size: min(times[size])) if times else 1
