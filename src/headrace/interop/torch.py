"""PyTorch: the loader as a stateful iterable of tensors, for plain loops, `DataLoader`, and Lightning.

    for batch in TorchBatches(loader, num_steps=1000, device="cuda"):
        loss = model(batch["inputs"], batch["targets"])

For Hugging Face's `Trainer` see trainer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from headrace.data.batch import Batch
from headrace.data.loader import Loader
from headrace.errors import UsageError
from headrace.interop.ahead import Ahead


class TorchBatches(IterableDataset[dict[str, Tensor]]):
    """Whole batches: a dict of int64 `inputs` and `targets`, and where the loader has them `mask` and `documents`.

    Iterate over it, give it to Lightning as it is, or wrap it in `DataLoader(batches, batch_size=None)`. `num_steps`
    is where a pass ends and gives it a length; without it, it is endless. For an accelerator, batches are copied from
    pinned memory while the ones before are worked on. `state_dict()` is where the consumer is, not the copies ahead.
    """

    def __init__(
        self,
        loader: Loader,
        num_steps: int | None = None,
        device: str | torch.device = "cpu",
        prefetch_batches: int = 2,
    ) -> None:
        super().__init__()
        if num_steps is not None and num_steps < 1:
            raise UsageError(f"num_steps must be at least 1, not {num_steps}")
        self._device = torch.device(device)
        self._num_steps = num_steps
        is_on_host = self._device.type == "cpu"  # nothing to copy: a batch ahead would only take memory
        self._batches = Ahead(loader, self._convert, 0 if is_on_host else prefetch_batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Continue at the consumer's position; with `num_steps`, to the end of the current pass."""
        refuse_worker_processes()
        return islice(self._batches, None if self._num_steps is None else self._remaining_steps())

    def __len__(self) -> int:
        if self._num_steps is None:
            raise TypeError("these batches are endless: give TorchBatches a num_steps")
        return self._num_steps

    def state_dict(self) -> dict[str, Any]:
        return self._batches.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches.restore(state)

    def _remaining_steps(self) -> int:
        assert self._num_steps is not None
        return self._num_steps - self._batches.step % self._num_steps

    def _convert(self, batch: Batch) -> dict[str, Tensor]:
        return {name: self._move(tensor) for name, tensor in as_tensors(batch).items()}

    def _move(self, tensor: Tensor) -> Tensor:
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def as_tensors(batch: Batch) -> dict[str, Tensor]:
    """Convert a batch to tensors on the host."""
    tensors = {
        "inputs": torch.from_numpy(batch.inputs.astype(np.int64)),
        "targets": torch.from_numpy(batch.targets.astype(np.int64)),
    }
    if batch.mask is not None:
        tensors["mask"] = torch.from_numpy(batch.mask)
    if batch.documents is not None:
        tensors["documents"] = torch.from_numpy(batch.documents)
    return tensors


def refuse_worker_processes() -> None:
    """Refuse to run in a worker process: each would make every batch, and a loader's threads do not survive a fork."""
    if get_worker_info() is not None:
        raise UsageError("headrace makes batches in threads of its own: use DataLoader(…, num_workers=0)")
