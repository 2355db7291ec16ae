"""What the network sees of a batch: windows as if they were sequences, and the same dropout however it is computed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.data.batch import Batch
from headrace.distributed.group import ALONE, Group
from headrace.distributed.replicas import Replica
from headrace.errors import UsageError
from headrace.models.dropout import Dropout, row_keys
from headrace.models.network import Network
from headrace.run.config import Layers
from headrace.training.autotune import Search
from headrace.training.choosing import Piece, TrainingChoice
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.showing.presentation import AS_IT_IS, Presentation
from headrace.training.step import accumulate
from tests.training.tiny import random_batch, small


def gradients(network: Network) -> Tensor:
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def gradients_of(batch: Batch, presentation: Presentation, execution: Execution, arch: str = "qwen3") -> Tensor:
    network = small(arch)
    accumulate(Replica(network), batch, execution, presentation=presentation)
    return gradients(network)


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize("execution", [Execution(8), Execution(3), Execution(8, engine="native")], ids=str)
def test_windows_of_a_sequence_are_like_sequences(arch: str, execution: Execution) -> None:
    documents = (np.arange(128) // 5 + 1).astype(np.int32).reshape(8, 16)
    whole = replace(random_batch(masked=True), documents=documents)
    assert whole.mask is not None
    pieces = Batch(0, *(array.reshape(-1, 4) for array in (whole.inputs, whole.targets, documents, whole.mask)))
    expected = gradients_of(pieces, AS_IT_IS, Execution(8), arch)
    assert_close(gradients_of(whole, Presentation(window=4), execution, arch), expected)


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize(
    "execution",
    [Execution(1), Execution(8, gradient_checkpointing=True), Execution(8, engine="native"),
     Execution(2, engine="native")],
    ids=str,
)  # fmt: skip
def test_the_same_is_dropped_however_a_step_is_computed(window: int, execution: Execution) -> None:
    shown = Presentation(window, dropout=0.25, seed=5, first_row=64)
    expected = gradients_of(random_batch(), shown, Execution(8))
    assert_close(gradients_of(random_batch(), shown, execution), expected)
    assert (expected - gradients_of(random_batch(), Presentation(window), Execution(8))).norm() > 0.1 * expected.norm()


def test_ways_that_are_compared_are_shown_the_same() -> None:
    """As in the first steps of a run, whose rows are computed in several ways."""
    shown = Presentation(4, dropout=0.25, seed=5, first_row=64)
    network = small()
    pieces = [Piece(3, Execution(3)), Piece(5, Execution(1, gradient_checkpointing=True))]
    choice = TrainingChoice(cast(Search, SimpleNamespace(measurements=lambda: iter(()))), [pieces])
    choice.accumulate(Replica(network), random_batch(), 1 / random_batch().num_tokens, shown)
    assert_close(gradients(network), gradients_of(random_batch(), shown, Execution(8)))


def test_ranks_drop_what_one_process_drops() -> None:
    config = TrainingConfig(batch_size=8, dropout=0.5, seed=1)
    alone = Presentation.at(config, 0, 3, ALONE, random_batch()).show(random_batch(), slice(0, 8))
    assert alone.keys is not None and len(set(alone.keys.tolist())) == 8
    ranks = [cast(Group, SimpleNamespace(rank=rank, world_size=2)) for rank in (0, 1)]
    half_batch = random_batch().rows(slice(0, 4))
    halves = [Presentation.at(config, 0, 3, rank, half_batch).show(half_batch, slice(0, 4)) for rank in ranks]
    assert np.array_equal(np.concatenate([half.keys for half in halves if half.keys is not None]), alone.keys)


def test_windows_are_short_in_the_first_half_only() -> None:
    config = TrainingConfig(max_length=256, short_windows=128)
    assert [config.window_at(progress) for progress in (0.0, 0.49, 0.5, 1.0)] == [128, 128, 0, 0]
    assert config.mean_window == 192 and TrainingConfig(max_length=256).mean_window == 256


def test_windows_double_until_sequences_are_whole() -> None:
    config = TrainingConfig(max_length=64, short_windows=8)
    points = (0.0, 0.49, 0.5, 0.74, 0.75, 0.87, 0.875, 1.0)
    assert [config.window_at(progress) for progress in points] == [8, 8, 16, 16, 32, 32, 0, 0]
    assert config.mean_window == 8 / 2 + 16 / 4 + 32 / 8 + 64 / 8
    assert TrainingConfig(max_length=96, short_windows=32).windows == [(0.5, 32), (0.5, 96)]


@pytest.mark.parametrize("window", [5, 32])
def test_sequences_that_windows_do_not_divide_stay_whole(window: int) -> None:
    """As those of somebody else's pipeline, which the configuration does not know."""
    shown = Presentation(window, dropout=0.1, first_row=3).show(random_batch(), slice(2, 4))
    assert shown.inputs.shape == (2, 16)
    assert shown.keys is not None and np.array_equal(shown.keys, row_keys(0, 5, 2))


def test_windows_divide_a_sequence() -> None:
    layers = Layers()
    layers.add({"training.max_length": 256, "training.short_windows": 100}, "test")
    with pytest.raises(UsageError, match=r"short_windows: 100 \(test\): it should divide training\.max_length"):
        layers.build()


def test_dropout_keeps_the_mean_and_no_mask() -> None:
    dropout = Dropout(0.2, torch.from_numpy(row_keys(0, 0, 64).astype(np.int64)))
    x = torch.ones(64, 32, 48, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved):
        first, second = (dropout(x, site) for site in (0, 1))
    assert sum(saved.numel() for saved in kept) == 2 * 64, "the keys"
    for found in (first, second):
        assert float((found == 0).double().mean()) == pytest.approx(0.2, abs=0.01)
        assert float(found.detach().mean()) == pytest.approx(1.0, abs=0.01)
        assert float((found == 0).double().mean(0).std()) < 0.07, "no column is dropped more often than others"
    assert float(((first == 0) & (second == 0)).double().mean()) == pytest.approx(0.04, abs=0.01), "sites differ"
    first.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and torch.equal(x.grad, first.detach())
