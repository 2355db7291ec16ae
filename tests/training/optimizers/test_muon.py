from __future__ import annotations

import pytest
import torch

from headrace.training.config import TrainingConfig
from headrace.training.optimizers.muon import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 48), (2, 48, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


def test_stacked_matrices_are_orthogonalised_apart() -> None:
    """Queries, keys and values in one matrix are updated as if they were three."""
    torch.manual_seed(0)
    joined = torch.nn.Parameter(torch.randn(48, 16))
    parts = [torch.nn.Parameter(part.clone()) for part in joined.detach().chunk(3)]
    joined.grad = torch.randn(48, 16)
    for part, gradient in zip(parts, joined.grad.chunk(3), strict=True):
        part.grad = gradient.clone()
    Muon([joined], TrainingConfig(), 0.1, {joined: 3}).step(0.1)
    Muon(list(parts), TrainingConfig(), 0.1).step(0.1)
    torch.testing.assert_close(joined.detach(), torch.cat([part.detach() for part in parts]))


@pytest.mark.parametrize("shape", [(16, 48), (48, 16)])
def test_counted_flops_are_those_of_pytorch(shape: tuple[int, int]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        orthogonalise(torch.randn(1, *shape))
    assert counter.get_total_flops() == Muon.update_flops(*shape)
