"""PyTorch: the loader's batches as tensors, with its state law, in a plain loop and DataLoader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import headrace as hr
from headrace.errors import UsageError
from headrace.interop.torch import TorchBatches

BATCH, LENGTH = 4, 16


def expected(cache: hr.Cache, count: int, **options: Any) -> list[np.ndarray[Any, Any]]:
    with hr.Loader(cache, BATCH, LENGTH, **options) as loader:
        return [next(loader).inputs for _ in range(count)]


@pytest.mark.parametrize("wrap", [lambda batches: batches, lambda batches: DataLoader(batches, batch_size=None)])
def test_batches_are_those_of_the_loader(cache: hr.Cache, wrap: Any) -> None:
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        seen = list(wrap(TorchBatches(loader, num_steps=5)))
    assert [set(batch) for batch in seen] == [{"inputs", "targets"}] * 5
    assert all(tensor.dtype == torch.int64 for batch in seen for tensor in batch.values())
    for batch, inputs in zip(seen, expected(cache, 5), strict=True):
        np.testing.assert_array_equal(batch["inputs"].numpy(), inputs)
        np.testing.assert_array_equal(batch["inputs"][:, 1:].numpy(), batch["targets"][:, :-1].numpy())


def test_packed_documents_bring_their_mask(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH, packing="document") as loader:
        batch = next(iter(TorchBatches(loader)))
    assert batch["mask"].dtype == torch.bool and batch["documents"].dtype == torch.int32


def test_restoring_at_every_step_gives_the_whole_tail(cache: hr.Cache) -> None:
    whole = expected(cache, 8)
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        # On "meta" batches run ahead as on an accelerator, and there is nothing to compare; so compare after restoring.
        ahead = TorchBatches(loader, device="meta", prefetch_batches=3)
        states = []
        for batch in ahead:
            assert batch["inputs"].device.type == "meta"
            states.append(ahead.state_dict())
            if len(states) == 7:
                break
    for step, state in enumerate(states, start=1):
        with hr.Loader(cache, BATCH, LENGTH) as loader:
            batches = TorchBatches(loader, num_steps=8)
            batches.load_state_dict(state)
            tail = [batch["inputs"].numpy() for batch in batches]
        np.testing.assert_array_equal(tail, whole[step:])


def test_a_pass_goes_on_where_the_one_before_ended(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = TorchBatches(loader, num_steps=3)
        assert len(batches) == 3
        seen = [batch["inputs"].numpy() for _ in range(2) for batch in batches]
    np.testing.assert_array_equal(seen, expected(cache, 6))


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # a neighbour's test may have imported JAX
def test_worker_processes_are_refused(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH) as loader, pytest.raises(UsageError, match="num_workers=0"):
        next(iter(DataLoader(TorchBatches(loader), batch_size=None, num_workers=1, multiprocessing_context="fork")))


def test_endless_batches_have_no_length(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        with pytest.raises(TypeError, match="num_steps"):
            len(TorchBatches(loader))
        with pytest.raises(UsageError, match="num_steps"):
            TorchBatches(loader, num_steps=0)
