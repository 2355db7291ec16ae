from __future__ import annotations

import pytest
import torch

from headrace.models.config import ModelConfig
from headrace.models.network import Network, build
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution, Precision
from headrace.training.optimizers.assignment import RULES
from headrace.training.optimizers.optimizer import Optimizer


def update(network: Network, optimizer: Optimizer, seed: int, execution: Execution) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step(0.5, execution)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(RULES))
def test_an_optimizer_goes_on_from_its_saved_state(name: str, precision: Precision) -> None:
    execution = Execution(1, precision=precision)
    training = TrainingConfig(optimizer=name)  # type: ignore[arg-type]
    config = ModelConfig(d_model=32, num_heads=2, num_layers=1, vocab_size=50, context=16)
    network = build(config)
    optimizer = Optimizer(network, training)
    assert optimizer.bytes_to_come() > 0
    update(network, optimizer, 0, execution)
    assert optimizer.bytes_to_come() == 0
    other = build(config)
    other.load_state_dict(network.state_dict())
    resumed = Optimizer(other, training)
    saved = dict(optimizer.tensors())
    assert {key: tuple(tensor.shape) for key, tensor in saved.items()} == resumed.layout()
    resumed.load_tensors(saved.items())
    update(network, optimizer, 1, execution)
    update(other, resumed, 1, execution)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))
