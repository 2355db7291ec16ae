from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.distributed.group import ALONE, Group
from headrace.native.library import why_missing
from headrace.training.config import TrainingConfig
from headrace.training.execution import PLAINEST, Execution
from headrace.training.optimizers import muon
from headrace.training.optimizers.muon import Muon

IN_BFLOAT16 = Execution(1, precision="bfloat16")
NATIVE = Execution(1, precision="bfloat16", engine="native")
WAYS = {"float32": PLAINEST, "bfloat16": IN_BFLOAT16} | ({} if why_missing() else {"native": NATIVE})
SHAPES = [(48, 16), (16, 16), (16, 16), (32, 16), (16, 48), (16, 16)]
STACKED = [3, 1, 1, 2, 1, 1]


class Thread(Group):
    """One of several threads that meet like the processes of a group."""

    def __init__(self, rank: int, world_size: int, shared: dict[int, Tensor], barrier: threading.Barrier) -> None:
        self.rank, self.world_size = rank, world_size
        self._shared, self._barrier = shared, barrier

    def gather_rows(self, rows: Tensor, doing: str) -> Tensor:
        self._shared[self.rank] = rows
        self._barrier.wait(timeout=10)
        everyones = torch.cat([self._shared[rank] for rank in range(self.world_size)])
        self._barrier.wait(timeout=10)
        return everyones


def rule() -> Muon:
    generator = torch.Generator().manual_seed(0)
    parameters: list[Tensor] = []
    for shape in SHAPES:
        parameters.append(torch.nn.Parameter(torch.randn(shape, generator=generator)))
        parameters[-1].grad = torch.randn(shape, generator=generator)
    return Muon(parameters, TrainingConfig(), 0.1, dict(zip(parameters, STACKED, strict=True)))


def weights_after_two_steps(execution: Execution = PLAINEST, group: Group = ALONE) -> list[Tensor]:
    updated = rule()
    updated.step(0.1, execution, group)
    updated.step(0.1, execution, group)
    return [parameter.detach() for parameter in updated.parameters]


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


def test_batches_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    together = weights_after_two_steps()
    monkeypatch.setattr(muon, "SCRATCH_ELEMENTS", 1)
    monkeypatch.setattr(muon, "LEAST_TOGETHER", 1)
    assert [len(batch) for batch in rule()._batches(1)] == 6 * [1]
    torch.testing.assert_close(weights_after_two_steps(), together)


@pytest.mark.parametrize("way", [name for name in WAYS if name != "float32"])
def test_the_precision_of_the_step_is_that_of_the_update(way: str) -> None:
    """bfloat16 products move weights by nearly the same, and weights and momentum stay in float32."""
    updated = rule()
    before = [parameter.detach().clone() for parameter in updated.parameters]
    updated.step(0.1, WAYS[way])
    exact = rule()
    exact.step(0.1)
    for start, rounded, precise in zip(before, updated.parameters, exact.parameters, strict=True):
        assert rounded.dtype == updated.state[rounded]["momentum"].dtype == torch.float32
        difference = (rounded - precise).detach().norm() / (precise - start).detach().norm()
        assert 1e-5 < float(difference) < 0.05


@pytest.mark.parametrize("num_processes", [2, 3, 5])
@pytest.mark.parametrize("execution", WAYS.values(), ids=WAYS)
def test_processes_share_the_work_and_have_the_same_weights(execution: Execution, num_processes: int) -> None:
    shared: dict[int, Tensor] = {}
    barrier = threading.Barrier(num_processes)
    results: dict[int, Any] = {}

    def run(rank: int) -> None:
        results[rank] = weights_after_two_steps(execution, Thread(rank, num_processes, shared, barrier))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    alone = weights_after_two_steps(execution)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if execution is PLAINEST else {"rtol": 0.0, "atol": 0.02}
    for weights in results.values():
        torch.testing.assert_close(weights, alone, **tolerance)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(weights, results[0], strict=True))
    assert len(results) == num_processes
