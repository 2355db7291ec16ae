"""torchdata: its StatefulDataLoader around the batches, and the batches in its place; both resume at every step."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.errors import StateError, UsageError
from headrace.interop.torch import TorchBatches

stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install 'headrace[torchdata]'")
pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated:UserWarning"
)  # torchdata 0.11 with torch 2.13

BATCH, LENGTH, STEPS = 4, 16, 6
Inputs = list[np.ndarray[Any, Any]]
Wrap = Callable[[TorchBatches], Any]


def dataloader(batches: TorchBatches) -> Any:
    return stateful.StatefulDataLoader(batches, batch_size=None)


def as_they_are(batches: TorchBatches) -> Any:
    return batches


WAYS = pytest.mark.parametrize("wrap", [dataloader, as_they_are])


def expected(cache: hr.Cache, count: int) -> Inputs:
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        return [next(loader).inputs for _ in range(count)]


@WAYS
def test_restoring_at_every_step_gives_the_whole_tail(cache: hr.Cache, wrap: Wrap) -> None:
    whole = expected(cache, 2 * STEPS)
    states = []
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = wrap(TorchBatches(loader, num_steps=STEPS))
        assert len(batches) == STEPS
        states.append(batches.state_dict())  # before the first batch
        for _ in range(2):  # passes
            states += [json.loads(json.dumps(batches.state_dict())) for _ in batches]
        states.append(batches.state_dict())  # after the end of a pass
    assert len(states) == 2 * STEPS + 2
    for number, state in enumerate(states):
        step = min(number, 2 * STEPS)
        with hr.Loader(cache, BATCH, LENGTH) as loader:
            batches = wrap(TorchBatches(loader, num_steps=STEPS))
            batches.load_state_dict(state)
            tail: Inputs = []
            while len(tail) < 2 * STEPS - step:
                tail += [batch["inputs"].numpy() for batch in batches]
        np.testing.assert_array_equal(tail[: 2 * STEPS - step], whole[step:], f"restored at {step}")


@WAYS
def test_an_older_state_takes_the_same_loader_back(cache: hr.Cache, wrap: Wrap) -> None:
    whole = expected(cache, STEPS)
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = wrap(TorchBatches(loader, num_steps=STEPS))
        iterator = iter(batches)
        next(iterator), next(iterator)
        state = batches.state_dict()
        next(iterator), next(iterator)
        batches.load_state_dict(state)
        np.testing.assert_array_equal([batch["inputs"].numpy() for batch in batches], whole[2:])


@WAYS
def test_a_state_goes_on_with_another_number_of_ranks(cache: hr.Cache, wrap: Wrap) -> None:
    whole = expected(cache, STEPS)
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = wrap(TorchBatches(loader, num_steps=STEPS))
        next(iter(batches))
        state = batches.state_dict()
    shares = []
    for rank in range(2):
        with hr.Loader(cache, BATCH, LENGTH, rank=rank, world_size=2) as loader:
            batches = wrap(TorchBatches(loader, num_steps=STEPS))
            batches.load_state_dict(state)
            shares.append([batch["inputs"].numpy() for batch in batches])
    np.testing.assert_array_equal(np.concatenate(shares, axis=1), whole[1:])


def test_the_batches_are_stateful_to_torchdata_and_to_distributed_checkpoints(cache: hr.Cache) -> None:
    from torch.distributed.checkpoint.stateful import Stateful as OfCheckpoints
    from torchdata.stateful_dataloader.stateful import Stateful

    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = TorchBatches(loader)
        assert isinstance(batches, Stateful)
        assert isinstance(batches, OfCheckpoints)


def test_worker_processes_are_refused(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = stateful.StatefulDataLoader(
            TorchBatches(loader), batch_size=None, num_workers=1, multiprocessing_context="spawn"
        )
        with pytest.raises(UsageError, match="num_workers=0"):
            next(iter(batches))


class Numbers(torch.utils.data.Dataset[int]):
    """What torchdata is made for: items by number."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, number: int) -> int:
        return number


def lengths_of_epochs_after_resuming(make: Callable[[], Any], stop: int) -> list[int]:
    """Stop inside the loop over an epoch after some batches, resume, and return how long the next three epochs are."""
    batches = make()
    for number, _ in enumerate(batches, start=1):
        if number == stop:
            break
    state = batches.state_dict()
    batches = make()
    batches.load_state_dict(state)
    return [len(list(batches)) for _ in range(3)]


@pytest.mark.parametrize("stop", range(1, STEPS + 2))
def test_epochs_are_those_of_any_stateful_dataloader(cache: hr.Cache, stop: int) -> None:
    theirs = lengths_of_epochs_after_resuming(lambda: stateful.StatefulDataLoader(Numbers(), batch_size=None), stop)
    with hr.Loader(cache, BATCH, LENGTH) as loader:

        def make() -> Any:
            loader.seek(0)
            return dataloader(TorchBatches(loader, num_steps=STEPS))

        assert lengths_of_epochs_after_resuming(make, stop) == theirs


def test_nodes_of_torchdata_resume(cache: hr.Cache) -> None:
    nodes = pytest.importorskip("torchdata.nodes")

    def make(loader: hr.Loader) -> Any:
        return nodes.Loader(nodes.Prefetcher(nodes.IterableWrapper(TorchBatches(loader, STEPS)), prefetch_factor=2))

    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = make(loader)
        iterator = iter(batches)
        next(iterator), next(iterator)
        state = batches.state_dict()
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = make(loader)
        batches.load_state_dict(state)
        np.testing.assert_array_equal([batch["inputs"].numpy() for batch in batches], expected(cache, STEPS)[2:])


@WAYS
def test_a_state_of_another_corpus_or_none_is_named(cache: hr.Cache, wrap: Wrap) -> None:
    with hr.Loader(cache, BATCH, 2 * LENGTH) as loader:
        batches = wrap(TorchBatches(loader))
        next(iter(batches))
        state = batches.state_dict()
    with hr.Loader(cache, BATCH, LENGTH) as loader, pytest.raises(StateError, match="sequence_length"):
        batches = wrap(TorchBatches(loader))
        batches.load_state_dict(state)
        next(iter(batches))
    with hr.Loader(cache, BATCH, LENGTH) as loader, pytest.raises(StateError):
        TorchBatches(loader).load_state_dict({})
