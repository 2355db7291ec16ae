"""Steps without products: everything but the products happens."""

from __future__ import annotations

import math

import pytest
import torch

from headrace.distributed.replicas import Replica
from headrace.instruments.dry_steps import WithoutProducts
from headrace.instruments.rehearsal import random_batch
from headrace.models.config import ModelConfig
from headrace.models.linear import has_onednn
from headrace.models.network import build
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.step import TrainStep, accumulate


@pytest.mark.skipif(not has_onednn(), reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
def test_gradients_have_their_places(arch: str, checkpointing: bool) -> None:
    model = ModelConfig(arch=arch, d_model=32, num_layers=2, vocab_size=50, context=16)  # type: ignore[arg-type]
    network = build(model)
    execution = Execution(2, matmul="onednn", gradient_checkpointing=checkpointing)
    with WithoutProducts():
        loss, _ = accumulate(Replica(network), random_batch(model, 4, 16), execution)
    assert loss == pytest.approx(math.log(50)), "logits of nothing but zeros"
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.shape == parameter.shape
        if parameter.dim() == 2 and name.startswith("blocks."):
            assert not parameter.grad.any(), f"{name}: its product was computed"


def test_a_step_can_be_taken_and_the_mode_left() -> None:
    model = ModelConfig(d_model=32, num_layers=1, vocab_size=50, context=16)
    network, training = build(model), TrainingConfig(batch_size=2, max_length=16)
    optimizer = Optimizer(network, training)
    execution = Execution(2, matmul="onednn" if has_onednn() else "default")
    batch = random_batch(model, 2, 16)
    with WithoutProducts():
        result = TrainStep(Replica(network), optimizer, execution, 1.0)(batch, 1.0)
    assert result.is_finite
    assert len(list(optimizer.tensors())) > 0, "the optimizer's state is made"
    assert torch.equal(torch.ones(2, 2) @ torch.ones(2, 2), torch.full((2, 2), 2.0))
    assert TrainStep(Replica(network), optimizer, execution, 1.0)(batch, 1.0).gradient_norm > 0
