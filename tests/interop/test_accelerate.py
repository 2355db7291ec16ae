"""The real Accelerate: its checkpoints hold the place of the batches, exactly, in both ways to give them to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import headrace as hr
from headrace.interop.torch import TorchBatches

accelerate = pytest.importorskip("accelerate", reason="pip install 'headrace[accelerate]'")

BATCH, LENGTH, STEPS = 4, 16, 6
pytestmark = pytest.mark.filterwarnings("ignore")  # of accelerate


@pytest.fixture(autouse=True)
def fresh_accelerator() -> Iterator[None]:
    """Accelerate keeps its state in the process; another test must not see it."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def make_accelerator(is_stateful: bool = False) -> Any:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    configuration = accelerate.DataLoaderConfiguration(use_stateful_dataloader=is_stateful)
    return accelerate.Accelerator(cpu=True, dataloader_config=configuration)


def expected(cache: hr.Cache, count: int) -> list[np.ndarray[Any, Any]]:
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        return [next(loader).inputs for _ in range(count)]


def test_registered_batches_resume_at_every_step(cache: hr.Cache, tmp_path: Path) -> None:
    whole = expected(cache, STEPS)
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        accelerator, batches = make_accelerator(), TorchBatches(loader)
        accelerator.register_for_checkpointing(batches)
        for step, _ in zip(range(STEPS), batches, strict=False):
            accelerator.save_state(str(tmp_path / str(step + 1)))
    for step in range(1, STEPS):
        with hr.Loader(cache, BATCH, LENGTH) as loader:
            accelerator, batches = make_accelerator(), TorchBatches(loader, num_steps=STEPS)
            accelerator.register_for_checkpointing(batches)
            accelerator.load_state(str(tmp_path / str(step)))
            np.testing.assert_array_equal([batch["inputs"].numpy() for batch in batches], whole[step:])


def test_a_prepared_stateful_dataloader_resumes_at_every_step(cache: hr.Cache, tmp_path: Path) -> None:
    pytest.importorskip("torchdata.stateful_dataloader", reason="pip install 'headrace[torchdata]'")
    whole = expected(cache, STEPS)

    def prepared(loader: hr.Loader) -> tuple[Any, Any]:
        accelerator = make_accelerator(is_stateful=True)
        dataloader = DataLoader(TorchBatches(loader, num_steps=STEPS), batch_size=None)
        return accelerator, accelerator.prepare(dataloader)  # it fetches a batch ahead, and must not save that

    seen = []
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        accelerator, batches = prepared(loader)
        for step, batch in enumerate(batches):
            seen.append(batch["inputs"].numpy())
            accelerator.save_state(str(tmp_path / str(step + 1)))
    np.testing.assert_array_equal(seen, whole)
    for step in range(1, STEPS):
        with hr.Loader(cache, BATCH, LENGTH) as loader:
            accelerator, batches = prepared(loader)
            accelerator.load_state(str(tmp_path / str(step)))
            np.testing.assert_array_equal([batch["inputs"].numpy() for batch in batches], whole[step:])


def test_gradients_are_accumulated_over_batches(cache: hr.Cache) -> None:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    updates = []
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        for batch in TorchBatches(loader, num_steps=4):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch["inputs"][:, :1].float() / 300).mean())
                optimizer.step()
                updates.append(accelerator.sync_gradients)
                optimizer.zero_grad()
    assert updates == [False, True, False, True]
