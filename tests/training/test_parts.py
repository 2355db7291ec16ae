from __future__ import annotations

import pytest
import torch

from headrace.distributed.replicas import Replica
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.optimizer import AdamW, Muon, Optimizer, orthogonalise
from headrace.training.step import accumulate
from tests.training.tiny import random_batch, small


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 48), (2, 48, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
def test_every_parameter_is_in_the_group_it_belongs_to(arch: str) -> None:
    network = small(arch)
    optimizer = Optimizer(network, TrainingConfig(optimizer="muon"))
    muon = {id(p) for rule in optimizer.rules if isinstance(rule, Muon) for p in rule.parameters}
    adamw = {id(p): rule.weight_decay for rule in optimizer.rules if isinstance(rule, AdamW) for p in rule.parameters}
    for name, parameter in network.named_parameters():
        is_matrix = name.startswith("blocks.") and parameter.dim() == 2
        assert (id(parameter) in muon) == is_matrix, name
        assert (id(parameter) in adamw) != is_matrix, name
        if not is_matrix:
            assert (adamw[id(parameter)] > 0) == (parameter.dim() == 2), name
    only_adamw = Optimizer(network, TrainingConfig(optimizer="adamw"))
    assert not any(isinstance(rule, Muon) for rule in only_adamw.rules)


def test_adamw_is_that_of_pytorch() -> None:
    ours, theirs = small(), small()
    optimizer = Optimizer(ours, TrainingConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.0))
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    for seed in range(3):
        for network in (ours, theirs):
            accumulate(Replica(network), random_batch(seed), Execution(8))
        optimizer.step(1.0)
        reference.step()
        ours.zero_grad()
        theirs.zero_grad()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_stacked_matrices_are_orthogonalised_apart() -> None:
    """Queries, keys and values in one matrix are updated as if they were three."""
    torch.manual_seed(0)
    joined = torch.nn.Parameter(torch.randn(48, 16))
    parts = [torch.nn.Parameter(part.clone()) for part in joined.detach().chunk(3)]
    joined.grad = torch.randn(48, 16)
    for part, gradient in zip(parts, joined.grad.chunk(3), strict=True):
        part.grad = gradient.clone()
    for parameters, stacked in (([joined], 3), (parts, 1)):
        Muon(list(parameters), 0.1, 0.9, stacked).step(0.1)
    torch.testing.assert_close(joined.detach(), torch.cat([part.detach() for part in parts]))
