"""Hugging Face `Trainer` on a `GPT2LMHeadModel`."""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset
from transformers import GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import headrace as hr


class Rows(IterableDataset[dict[str, torch.Tensor]]):
    def __init__(self, loader: hr.Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for batch in self.loader:
            inputs = torch.from_numpy(batch.inputs.astype(np.int64))
            targets = torch.from_numpy(batch.targets.astype(np.int64))
            for row, target in zip(inputs, targets, strict=True):
                yield {"input_ids": row, "labels": row, "shift_labels": target}


def train(job: dict[str, Any], report: Callable[[float], None]) -> int:
    class Report(TrainerCallback):  # type: ignore[misc]
        def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
            if "loss" in logs:
                report(float(logs["loss"]))

    model = GPT2LMHeadModel.from_pretrained(job["weights"])
    with (
        tempfile.TemporaryDirectory() as out,
        hr.Loader(job["cache"], job["batch_size"], job["sequence_length"]) as loader,
    ):
        arguments = TrainingArguments(
            output_dir=out, max_steps=job["num_steps"], per_device_train_batch_size=job["batch_size"],
            learning_rate=job["learning_rate"], lr_scheduler_type="constant", adam_beta2=0.95, weight_decay=0.0,
            max_grad_norm=1.0, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
            remove_unused_columns=False,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=Rows(loader), callbacks=[Report()]).train()
    return int(model.num_parameters())
