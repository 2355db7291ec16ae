"""PyTorch: the loader as a stateful iterable of tensors, for plain loops, `DataLoader`, torchdata, Accelerate and Ray.

    for batch in TorchBatches(loader, num_steps=1000, device="cuda"):
        loss = model(batch["inputs"], batch["targets"])

For Hugging Face's `Trainer` see trainer.py, for Lightning lightning.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from headrace.data.batch import Batch
from headrace.data.loader import Loader
from headrace.errors import UsageError
from headrace.interop.ahead import Ahead


class Pass(Iterator[dict[str, Tensor]]):
    """The batches up to the end of a pass. Its state tells the end of one pass from the beginning of the next."""

    def __init__(self, batches: Ahead[dict[str, Tensor]], end: int | None) -> None:
        self._batches = batches
        self._end = end

    def __next__(self) -> dict[str, Tensor]:
        if self._end is not None and self._batches.step >= self._end:
            raise StopIteration
        return next(self._batches)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self._batches.state(), "end": self._end}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches.restore(state["batches"])
        self._end = state["end"]


class TorchBatches(IterableDataset[dict[str, Tensor]]):
    """Whole batches: a dict of int64 `inputs` and `targets`, and where the loader has them `mask` and `documents`.

    Iterate over it, give it to Lightning as it is, or wrap it in `DataLoader(batches, batch_size=None)` or torchdata's
    `StatefulDataLoader(batches, batch_size=None)`. `num_steps` is where a pass ends and gives it a length; without it,
    it is endless. For an accelerator, batches are copied from pinned memory while the ones before are worked on.
    `state_dict()` is where the consumer is, not the copies ahead; after the last batch of a pass it is the beginning of
    the next.
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

    def __iter__(self) -> Pass:
        """Continue at the consumer's position; with `num_steps`, to the end of the current pass."""
        if get_worker_info() is not None:
            refuse_worker_processes()
        if self._num_steps is None:
            return Pass(self._batches, None)
        return Pass(self._batches, (self._batches.step // self._num_steps + 1) * self._num_steps)

    def __len__(self) -> int:
        if self._num_steps is None:
            raise TypeError("these batches are endless: give TorchBatches a num_steps")
        return self._num_steps

    def state_dict(self) -> dict[str, Any]:
        return self._batches.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches.restore(state)

    def __reduce__(self) -> NoReturn:
        refuse_worker_processes()

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


def refuse_worker_processes() -> NoReturn:
    """Refuse worker processes: each would make every batch, and a loader's threads are not copied into them."""
    raise UsageError("headrace makes batches in threads of its own: use DataLoader(…, num_workers=0)")
