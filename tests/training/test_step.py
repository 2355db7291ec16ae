"""An update: the same gradients however it is computed, and none that is not finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.distributed.replicas import Replica
from headrace.models.kernels import Kernels
from headrace.models.loss import head_loss
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.step import TrainStep, accumulate
from tests.training.tiny import random_batch, small


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize("masked", [False, True])
def test_micro_batches_give_the_same_gradients(arch: str, masked: bool) -> None:
    gradients = []
    for size in (1, 2, 4, 8):
        network = small(arch)
        accumulate(Replica(network), random_batch(masked=masked), Execution(size))
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    for gradient in gradients[1:]:
        assert (gradient - gradients[0]).norm() < 1e-5 * gradients[0].norm()


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize(
    "execution",
    [Execution(4, matmul="onednn"), Execution(4, gradient_checkpointing=True), Execution(4, head_chunk_bytes=1)],
    ids=str,
)
def test_ways_to_compute_a_step_give_the_same_gradients(arch: str, execution: Execution) -> None:
    gradients = []
    for way in (Execution(4), execution):
        network = small(arch)
        accumulate(Replica(network), random_batch(masked=True), way)
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    assert (gradients[1] - gradients[0]).norm() < 1e-5 * gradients[0].norm()


def test_logits_exist_in_chunks_of_the_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watch(*arguments: Any) -> Tensor:
        seen.extend(argument for argument in arguments if isinstance(argument, Kernels))
        return head_loss(*arguments)

    monkeypatch.setattr("headrace.training.step.head_loss", watch)
    accumulate(Replica(small("gpt2")), random_batch(), Execution(4, head_chunk_bytes=12345))
    assert {kernels.head_chunk_bytes for kernels in seen} == {12345}


def test_a_gradient_that_is_not_finite_never_reaches_the_weights() -> None:
    network = small()
    step = TrainStep(Replica(network), Optimizer(network, TrainingConfig()), Execution(8), 1.0)
    step(random_batch(), 1.0)
    before = [parameter.clone() for parameter in network.parameters()]
    with torch.no_grad():
        kept = network.embedding.weight.clone()
        network.embedding.weight[3] = float("nan")
    result = step(random_batch(1), 1.0)
    assert not result.is_finite
    with torch.no_grad():
        network.embedding.weight.copy_(kept)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert step(random_batch(2), 1.0).is_finite


def test_the_time_of_an_update_is_told_by_stage() -> None:
    network = small()
    result = TrainStep(Replica(network), Optimizer(network, TrainingConfig()), Execution(4), 1.0)(random_batch(), 1.0)
    seconds = result.seconds.by_stage()
    assert list(seconds) == ["forward", "backward", "optimizer"], "one process has nobody to wait for"
    assert min(seconds.values()) > 0
