"""One update: micro-batches forward and backward, clip, check, step."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.distributed.group import ALONE, Group
from headrace.distributed.pieces import as_whole
from headrace.distributed.replicas import Replica
from headrace.models.loss import CHUNK_BYTES, head_loss
from headrace.models.network import Network
from headrace.training.optimizers.optimizer import Optimizer


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


@dataclass(frozen=True)
class Execution:
    """How a step is computed, never what: chosen by measurement, recorded, and the same again after a resume."""

    micro_batch_size: int
    precision: str = "float32"
    use_onednn: bool = False
    """Float32 products by oneDNN instead of PyTorch's default."""
    gradient_checkpointing: bool = False
    head_chunk_bytes: int = CHUNK_BYTES
    """Logits that exist at a time."""
    compiled: bool = False
    """Through torch.compile."""
    threads: int = 0
    """Threads of the computation; 0: as they are."""

    @property
    def dtype(self) -> torch.dtype:
        """What matrix products are computed in."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def apply_to(self, network: Network) -> None:
        network.use_onednn = self.use_onednn
        network.head_chunk_bytes = self.head_chunk_bytes
        network.use_compiled = self.compiled
        network.checkpoint_blocks = self.gradient_checkpointing
        if self.threads:
            torch.set_num_threads(self.threads)


@dataclass
class StepResult:
    """What an update did."""

    loss: float
    gradient_norm: float
    is_finite: bool
    seconds: dict[str, float] = field(default_factory=dict)
    """Where its time went: forward (with the head's loss and its gradients), backward, optimizer; in a group, also
    aggregation: waiting for gradients once the backward pass is computed."""


def autocast(network: Network, precision: str) -> AbstractContextManager[Any]:
    if precision != "bfloat16":
        return nullcontext()
    return torch.autocast(network.head_weight_VD.device.type, dtype=torch.bfloat16)


def batch_loss(
    network: Network, batch: TokenBatch, rows: slice, scale: float, replica: Replica | None = None
) -> Tensor:
    """scale x the sum of the losses of some rows."""
    device = network.head_weight_VD.device
    inputs = torch.from_numpy(batch.inputs[rows].astype(np.int64)).to(device)
    targets = torch.from_numpy(batch.targets[rows].astype(np.int64)).to(device)
    documents = None if batch.documents is None else torch.from_numpy(batch.documents[rows]).to(device)
    mask = None if batch.mask is None else torch.from_numpy(batch.mask[rows]).to(device).flatten()
    hidden = (replica or network).hidden(inputs, documents)
    weight, chunk_bytes = network.head_weight_VD, network.head_chunk_bytes
    return head_loss(hidden.flatten(0, 1), weight, targets.flatten(), mask, scale, network.use_onednn, chunk_bytes)


class TrainStep:
    """Turns batches into updates; in a group, each process brings its rows of the batch, and all do the same update."""

    def __init__(
        self,
        network: Network,
        optimizer: Optimizer,
        execution: Execution,
        gradient_clip: float,
        group: Group = ALONE,
        replica: Replica | None = None,
    ) -> None:
        self._network = network
        self._optimizer = optimizer
        self._execution = execution
        self._clip = gradient_clip or float("inf")
        self._group = group
        self._replica = replica
        execution.apply_to(network)

    def __call__(self, batch: TokenBatch, learning_rate_factor: float) -> StepResult:
        num_tokens = sum(count for (count,) in self._group.gather([batch.num_tokens], "counting targets"))
        # Averaging over processes divides by their number once more.
        scale = self._group.world_size / max(num_tokens, 1)
        seconds = {"forward": 0.0, "backward": 0.0}
        loss = accumulate(self._network, batch, self._execution, seconds, scale, self._replica)
        began = time.perf_counter()
        with self._group.exchanging("clipping gradients"):
            norm = float(as_whole(torch.nn.utils.clip_grad_norm_(self._network.parameters(), self._clip)))
        results = self._group.gather([loss, norm], "adding up the loss")
        loss = sum(loss for loss, _ in results) / self._group.world_size
        is_finite = bool(np.isfinite(results).all())
        if is_finite:  # a NaN never reaches the weights
            with self._group.exchanging("updating the weights"):
                self._optimizer.step(learning_rate_factor)
        self._network.zero_grad(set_to_none=True)
        seconds["optimizer"] = time.perf_counter() - began
        return StepResult(loss, norm, is_finite, seconds)

    def is_sound(self, batch: TokenBatch) -> bool:
        """Whether the weights give a finite loss and gradient for the first rows of a batch; updates nothing."""
        replica, rows = self._replica, slice(0, self._execution.micro_batch_size)
        with nullcontext() if replica is None else replica.micro_batch(is_last=True):
            with autocast(self._network, self._execution.precision):
                loss = batch_loss(self._network, batch, rows, 1.0 / batch.targets[rows].size, replica)
            loss.backward()  # type: ignore[no-untyped-call]
        with self._group.exchanging("judging gradients"):
            norm = float(as_whole(torch.nn.utils.get_total_norm(_gradients(self._network))))
        self._network.zero_grad(set_to_none=True)
        return bool(np.isfinite(self._group.gather([float(loss.detach()), norm], "judging the weights")).all())


def _gradients(network: Network) -> list[Tensor]:
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]


def accumulate(
    network: Network,
    batch: TokenBatch,
    execution: Execution,
    seconds: dict[str, float],
    scale: float | None = None,
    replica: Replica | None = None,
) -> float:
    """Gradients of scale x the sum of the losses, whatever the micro-batches; with a replica, averaged over its group.

    Without a scale: of their mean over all targets of the batch.
    """
    scale = 1.0 / max(batch.num_tokens, 1) if scale is None else scale
    loss = 0.0
    starts = range(0, len(batch.inputs), execution.micro_batch_size)
    for start in starts:
        began = time.perf_counter()
        rows = slice(start, start + execution.micro_batch_size)
        with nullcontext() if replica is None else replica.micro_batch(is_last=start == starts[-1]):
            with autocast(network, execution.precision):
                part = batch_loss(network, batch, rows, scale, replica)
            middle = time.perf_counter()
            part.backward()  # type: ignore[no-untyped-call]
        loss += float(part.detach())
        seconds["forward"] += middle - began
        seconds["backward"] += time.perf_counter() - middle
    if replica is not None and replica.exposed_s is not None:
        seconds["aggregation"] = replica.exposed_s
        seconds["backward"] -= replica.exposed_s
    return loss
