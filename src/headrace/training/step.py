"""One update: forward and backward passes over micro-batches, then clipping, the check for NaN, and the optimizer."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.distributed.pieces import as_whole
from headrace.distributed.replicas import Replica
from headrace.models.dropout import Dropout
from headrace.models.kernels import PLAIN, Kernels
from headrace.models.loss import head_loss
from headrace.models.network import Network
from headrace.training.execution import Execution
from headrace.training.optimizers.average import WeightAverage
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.showing.presentation import AS_IT_IS, Presentation, Shown, TokenBatch
from headrace.training.ways.memory import SPARE_BYTES, pass_bytes

CLIPPING_EPSILON = 1e-6
"""What PyTorch adds to a norm before it divides by it."""


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of an update by stage."""

    forward: float
    """Forward passes, with the head's loss and its gradients."""
    backward: float
    """Backward passes."""
    aggregation: float | None = None
    """Waiting for other processes' gradients after the backward pass is computed; None where it is not measured."""
    optimizer: float = 0.0
    """Clipping and the optimizer's update."""

    def __add__(self, other: StepSeconds) -> StepSeconds:
        """Return the seconds of two parts of an update together."""
        waited = [part.aggregation for part in (self, other) if part.aggregation is not None]
        return StepSeconds(
            self.forward + other.forward,
            self.backward + other.backward,
            sum(waited) if waited else None,
            self.optimizer + other.optimizer,
        )

    def by_stage(self) -> dict[str, float]:
        """Return the seconds of the stages that were measured, by the stage's name."""
        return {stage: seconds for stage, seconds in vars(self).items() if seconds is not None}


@dataclass
class StepResult:
    """The outcome of an update."""

    loss: float
    gradient_norm: float
    is_finite: bool
    """Whether the loss and the gradient were finite; if not, the weights were left alone."""
    seconds: StepSeconds


class Choosing(Protocol):
    """The choice of an execution while training; `training/choosing.py` has one."""

    @property
    def best(self) -> Execution: ...
    @property
    def newest(self) -> Execution: ...
    @property
    def is_settled(self) -> bool: ...

    def accumulate(
        self, replica: Replica, batch: TokenBatch, scale: float, presentation: Presentation
    ) -> tuple[float, StepSeconds]: ...


class TrainStep:
    """A function from batches to updates. In a group, each process brings its own rows, and all do the same update."""

    def __init__(
        self,
        replica: Replica,
        optimizer: Optimizer,
        execution: Execution | Choosing,
        gradient_clip: float,
        average: WeightAverage | None = None,
    ) -> None:
        """`execution`: one way to compute all steps, or the ways to choose from while they are computed.

        `average`: follows the weights from update to update.
        """
        self._replica = replica
        self._optimizer = optimizer
        self._choosing = None if isinstance(execution, Execution) else execution
        self._execution = execution if isinstance(execution, Execution) else execution.best
        self._clip = gradient_clip or float("inf")
        self._average = average
        self._execution.set_threads()

    def __call__(
        self, batch: TokenBatch, learning_rate_factor: float, presentation: Presentation = AS_IT_IS
    ) -> StepResult:
        """Do one update."""
        network, group = self._replica.network, self._replica.group
        num_tokens = sum(count for (count,) in group.gather([batch.num_tokens], "counting targets"))
        # Gradients are averaged over the processes, which divides by their number once more.
        scale = group.world_size / max(num_tokens, 1)
        loss, seconds = self._accumulate(batch, scale, presentation)
        began = time.perf_counter()
        with group.exchanging("clipping gradients"):
            norm = self._clip_gradients(network)
        results = group.gather([loss, norm], "adding up the loss")
        loss = sum(loss for loss, _ in results) / group.world_size
        is_finite = bool(np.isfinite(results).all())
        if self._replica.memory_limit is not None:
            needed_bytes = self._optimizer.bytes_to_come() + self._optimizer.working_bytes(self._execution)
            self._replica.make_room(needed_bytes + SPARE_BYTES)
        if is_finite:  # a NaN never reaches the weights
            with group.exchanging("updating the weights"):
                self._optimizer.step(learning_rate_factor, self._execution, group)
        if self._average is not None:
            self._average.follow()
        network.zero_grad(set_to_none=True)
        return StepResult(loss, norm, is_finite, replace(seconds, optimizer=time.perf_counter() - began))

    def _clip_gradients(self, network: Network) -> float:
        """Scale the gradient down to the largest norm that it may have, if it has more; return the norm before."""
        total = torch.nn.utils.get_total_norm(_gradients(network))
        norm = float(as_whole(total))
        if norm + CLIPPING_EPSILON > self._clip:  # else all would be multiplied by 1
            torch.nn.utils.clip_grads_with_norm_(network.parameters(), self._clip, total)
        return norm

    def _accumulate(self, batch: TokenBatch, scale: float, presentation: Presentation) -> tuple[float, StepSeconds]:
        if self._choosing is not None and not self._choosing.is_settled:
            result = self._choosing.accumulate(self._replica, batch, scale, presentation)
            # The optimizer computes like the last rows: that is written down, and the same again after a resume.
            self._execution = self._choosing.newest
            return result
        if self._choosing is not None:
            self._execution, self._choosing = self._choosing.best, None
            self._execution.set_threads()
        return accumulate(self._replica, batch, self._execution, scale, presentation=presentation)

    def is_sound(self, batch: TokenBatch) -> bool:
        """Return whether the weights give a finite loss and gradient for the first row of a batch; update nothing."""
        network, group = self._replica.network, self._replica.group
        rows = range(self._execution.micro_batch_size if self._execution.compile else 1)  # code for one shape
        scale = 1.0 / batch.targets[: rows.stop].size
        loss, _ = accumulate(self._replica, batch, self._execution, scale, rows)
        with group.exchanging("judging gradients"):
            norm = float(as_whole(torch.nn.utils.get_total_norm(_gradients(network))))
        network.zero_grad(set_to_none=True)
        return bool(np.isfinite(group.gather([loss, norm], "judging the weights")).all())


def accumulate(
    replica: Replica,
    batch: TokenBatch,
    execution: Execution,
    scale: float | None = None,
    rows: range | None = None,
    presentation: Presentation = AS_IT_IS,
) -> tuple[float, StepSeconds]:
    """Compute the gradients of scale x the sum of losses, micro-batch by micro-batch; return that loss and the times.

    Without a scale, the loss is the mean over all targets of the batch; without rows, it is of all of them. In a group,
    gradients become those of the mean over its processes.
    """
    scale = 1.0 / max(batch.num_tokens, 1) if scale is None else scale
    rows = range(len(batch.inputs)) if rows is None else rows
    if execution.engine == "native":
        return _accumulate_natively(replica, batch, execution, scale, rows, presentation)
    needed_bytes = 0
    if replica.memory_limit is not None:
        replica.release_native_steps()  # the memory of both ways together may be too much
        needed_bytes = pass_bytes(replica.network.config, batch.inputs.shape[1], execution)
    loss = forward_s = backward_s = 0.0
    starts = rows[:: execution.micro_batch_size]
    for start in starts:
        stop = min(start + execution.micro_batch_size, rows.stop)
        replica.make_room(needed_bytes + _missing_gradient_bytes(replica))
        shown = presentation.show(batch, slice(start, stop))
        part, forward_part_s, backward_part_s = _forward_and_backward(
            replica, shown, execution, scale, is_last=start == starts[-1]
        )
        loss += part
        forward_s += forward_part_s
        backward_s += backward_part_s
    waited_s = replica.exposed_s
    return loss, StepSeconds(forward_s, backward_s - (waited_s or 0.0), waited_s)


def _accumulate_natively(
    replica: Replica, batch: TokenBatch, execution: Execution, scale: float, rows: range, presentation: Presentation
) -> tuple[float, StepSeconds]:
    """Compute gradients as `accumulate` does, by the native library."""
    step = replica.native_step(execution.precision, torch.get_num_threads())
    loss, seconds = 0.0, StepSeconds(0.0, 0.0)
    for start in rows[:: execution.micro_batch_size]:
        shown = presentation.show(batch, slice(start, min(start + execution.micro_batch_size, rows.stop)))
        num_sequences, length = shown.inputs.shape
        planned_bytes = step.bytes_to_plan(num_sequences, length, shown.candidates)
        replica.make_room(planned_bytes + _missing_gradient_bytes(replica))
        began = time.perf_counter()
        loss += step(
            shown.inputs,
            shown.targets,
            shown.documents,
            shown.mask,
            scale,
            shown.dropout,
            shown.keys,
            shown.candidates,
        )
        seconds += StepSeconds(step.forward_s, time.perf_counter() - began - step.forward_s)
    began = time.perf_counter()
    replica.average_gradients()
    return loss, seconds + StepSeconds(0.0, 0.0, time.perf_counter() - began if replica.group.world_size > 1 else None)


def _forward_and_backward(
    replica: Replica, shown: Shown, execution: Execution, scale: float, is_last: bool
) -> tuple[float, float, float]:
    """Add the gradients of one micro-batch; return its loss, and the seconds of its two passes."""
    began = time.perf_counter()
    with replica.micro_batch(is_last):
        with execution.autocast(replica.network.device):
            loss = shown_loss(replica, shown, scale, execution.kernels)
        middle = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), middle - began, time.perf_counter() - middle


def batch_loss(replica: Replica, batch: TokenBatch, rows: slice, scale: float, kernels: Kernels = PLAIN) -> Tensor:
    """Return scale x the sum of the losses of some rows of a batch, as they are."""
    return shown_loss(replica, AS_IT_IS.show(batch, rows), scale, kernels)


def shown_loss(replica: Replica, shown: Shown, scale: float, kernels: Kernels) -> Tensor:
    """Return scale x the sum of the losses of rows as they are shown to the network."""
    device = replica.network.device
    inputs = torch.from_numpy(shown.inputs.astype(np.int64)).to(device)
    placed = shown.targets if shown.candidates is None else shown.candidates.place(shown.targets)
    targets = torch.from_numpy(placed.astype(np.int64)).to(device)
    documents = None if shown.documents is None else torch.from_numpy(shown.documents).to(device)
    mask = None if shown.mask is None else torch.from_numpy(shown.mask).to(device).flatten()
    dropout = None
    if shown.keys is not None:
        dropout = Dropout(shown.dropout, torch.from_numpy(shown.keys.astype(np.int64)).to(device))
    hidden_ND = replica.hidden(inputs, documents, kernels, dropout).flatten(0, 1)
    weight, offsets = replica.network.head_weight_VD, None
    if shown.candidates is not None:
        weight, offsets = shown.candidates.select(weight), torch.from_numpy(shown.candidates.offsets).to(device)
    return head_loss(hidden_ND, weight, targets.flatten(), mask, scale, kernels, offsets)


def _missing_gradient_bytes(replica: Replica) -> int:
    """Return the bytes of gradients that the next passes will allocate; 0 without a memory limit, where none counts."""
    if replica.memory_limit is None:
        return 0
    return sum(parameter.nbytes for parameter in replica.network.parameters() if parameter.grad is None)


def _gradients(network: Network) -> list[Tensor]:
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
