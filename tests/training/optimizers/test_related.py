"""Tokens that learn from others that they share a part with."""

from __future__ import annotations

import numpy as np
import torch

from headrace.data.tokens.relations import SharedParts
from headrace.models.config import ModelConfig
from headrace.models.network import Network, build
from headrace.training.config import TrainingConfig
from headrace.training.optimizers.adamw import AdamW
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.optimizers.related import RelatedAdamW, usual_parts

# Tokens 1, 2 and 4 share part 0, tokens 2 and 3 share part 1, token 0 shares nothing.
SHARED = SharedParts(np.array([1, 2, 2, 3, 4]), np.array([0, 0, 1, 1, 0]), 2)
TRAINING = TrainingConfig(related_tokens=0.5, weight_decay=0.2)


def table(seed: int = 0) -> torch.Tensor:
    return torch.nn.Parameter(torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)))


def test_an_update_is_that_of_a_table_whose_rows_are_sums_of_vectors() -> None:
    """Vectors of the parts are parameters of their own here, and PyTorch differentiates the sum."""
    mine, own = table(), table()
    parts = torch.nn.Parameter(torch.zeros(2, 3))
    belongs = torch.zeros(5, 2)
    belongs[SHARED.tokens, SHARED.parts] = TRAINING.related_tokens
    rule = RelatedAdamW([mine], TRAINING, 0.2, SHARED)
    plain = [AdamW([own], TRAINING, 0.2), AdamW([parts], TRAINING, 0.0)]
    for step in range(5):
        target = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        ((own + belongs @ parts) * target).sum().backward()
        mine.grad = target.clone()
        before = parts.detach().clone()
        rule.step(0.01)
        for each in plain:
            each.step(0.01)
        with torch.no_grad():  # what a part moved by belongs to the rows from then on, and decays with them
            own += belongs @ (parts - before)
            parts.copy_(before)
        own.grad = parts.grad = None
        torch.testing.assert_close(mine, own)


def test_a_token_without_gradient_follows_its_relatives() -> None:
    mine = table()
    before = mine.detach().clone()
    rule = RelatedAdamW([mine], TrainingConfig(related_tokens=0.5), 0.0, SHARED)
    mine.grad = torch.zeros(5, 3)
    mine.grad[1] = 1.0
    rule.step(0.01)
    moved = (mine - before).abs().amax(1) > 0
    assert moved.tolist() == [False, True, True, False, True]


def network(tied: bool = True) -> Network:
    shape = {"d_model": 8, "num_heads": 1, "num_layers": 1, "vocab_size": 5, "context": 4}
    return build(ModelConfig(arch="gpt2", tie_embeddings=tied, **shape))  # type: ignore[arg-type]


def test_the_tables_of_tokens_are_related_and_positions_are_not() -> None:
    for tied in (True, False):
        trained = network(tied)
        optimizer = Optimizer(trained, TRAINING, SHARED)
        (related,) = (rule for rule in optimizer.rules if isinstance(rule, RelatedAdamW))
        assert [id(table) for table in related.parameters] == [id(table) for table in trained.token_tables]
        updated = [id(parameter) for rule in optimizer.rules for parameter in rule.parameters]
        assert sorted(updated) == sorted(id(parameter) for parameter in trained.parameters()), "each once"


def test_usual_parts_are_like_those_of_a_vocabulary() -> None:
    found = usual_parts(TRAINING, 1000)
    assert found is not None and (len(found.tokens), found.num_parts) == (2300, 470)
    assert found.tokens.max() < 1000 and (np.bincount(found.parts) > 1).all()
    assert usual_parts(TrainingConfig(), 1000) is None


def test_the_state_of_parts_is_saved_and_goes_on() -> None:
    first, second = network(), network()
    optimizers = [Optimizer(each, TRAINING, SHARED) for each in (first, second)]

    def update(trained: Network, optimizer: Optimizer, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in trained.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step(1.0)

    assert optimizers[0].bytes_to_come() > 0
    update(first, optimizers[0], 0)
    assert optimizers[0].bytes_to_come() == 0
    second.load_state_dict(first.state_dict())
    saved = dict(optimizers[0].tensors())
    assert {name: tuple(tensor.shape) for name, tensor in saved.items()} == optimizers[1].layout()
    optimizers[1].load_tensors(saved.items())
    for trained, optimizer in zip((first, second), optimizers, strict=True):
        update(trained, optimizer, 1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
