"""Hugging Face `Trainer`: the loader as its training set, and a callback that makes resuming instant and checked.

    trainer = Trainer(
        model,
        TrainingArguments(per_device_train_batch_size=loader.batch_size, remove_unused_columns=False,
                          ignore_data_skip=True, max_steps=1000, …),
        train_dataset=TrainerRows(loader),
        callbacks=[resume_callback(loader)],
    )
    trainer.train(resume_from_checkpoint=True)

Needs transformers and accelerate (`pip install 'headrace[trainer]'`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from headrace.data.loader import Loader
from headrace.errors import StateError, UsageError
from headrace.files import write_atomically
from headrace.interop.extras import require
from headrace.interop.torch import as_tensors, refuse_worker_processes
from headrace.models.network import document_positions

STATE_FILE = "headrace_loader.json"
IGNORED = -100  # what transformers leaves out of the loss


class TrainerRows(IterableDataset[dict[str, Tensor]]):
    """Single rows, because `Trainer` puts batches together itself: `input_ids`, `labels` and `shift_labels`.

    transformers moves `labels` on by one, and so never trains on the last target of a row; `shift_labels` are the
    targets as they are, all of them. `Trainer` keeps them only with `remove_unused_columns=False`. With document
    packing there are `position_ids` that begin anew in each document, by which transformers recognises packed documents
    and lets none attend to another.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        self._loader = loader

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        if get_worker_info() is not None:
            refuse_worker_processes()
        for batch in self._loader:
            tensors = as_tensors(batch)
            inputs, targets = tensors["inputs"], tensors["targets"]
            if "mask" in tensors:
                targets = targets.masked_fill(~tensors["mask"], IGNORED)
            labels = inputs.clone()
            labels[:, 1:] = targets[:, :-1]
            columns = {"input_ids": inputs, "labels": labels, "shift_labels": targets}
            if "documents" in tensors:
                columns["position_ids"] = document_positions(tensors["documents"])
            for row in range(len(inputs)):
                yield {name: values[row] for name, values in columns.items()}

    def __reduce__(self) -> NoReturn:
        refuse_worker_processes()


def resume_callback(loader: Loader) -> Any:
    """Return a `TrainerCallback` that saves the loader's state with every checkpoint, and restores it on resume.

    Without it `Trainer` finds its place by making every batch up to there once more.
    """
    transformers = require("transformers", "trainer")

    class LoaderState(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            step = _step(args, state.global_step, loader)
            if not args.ignore_data_skip:
                raise UsageError(
                    "resume_callback needs TrainingArguments(ignore_data_skip=True): it finds the place itself"
                )
            if step:
                loader.restore(_read_state(Path(args.output_dir) / f"checkpoint-{state.global_step}", step))

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # Trainer has taken more rows than it has trained on; what counts is its own step.
            saved = loader.state(_step(args, state.global_step, loader))
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            write_atomically(folder / STATE_FILE, json.dumps(saved).encode())

    return LoaderState()


def _step(args: Any, global_step: int, loader: Loader) -> int:
    """Return the loader's step after a number of updates."""
    rows = int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)
    if rows % loader.batch_size:
        raise UsageError(
            f"an update of Trainer takes {rows} rows, which are not whole batches of {loader.batch_size}: make"
            " per_device_train_batch_size the loader's batch_size"
        )
    return global_step * rows // loader.batch_size


def _read_state(checkpoint: Path, step: int) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((checkpoint / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        raise StateError(
            f"{checkpoint / STATE_FILE}: missing or damaged. Resume without resume_callback and ignore_data_skip:"
            " Trainer then makes every batch up to there once more."
        ) from None
    if state.get("step") != step:
        raise StateError(
            f"{checkpoint / STATE_FILE}: belongs to step {state.get('step')}, but Trainer resumes at {step}."
        )
    return state
