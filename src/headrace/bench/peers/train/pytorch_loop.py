"""The loop that people write: the whole batch, cross-entropy on full logits, fused AdamW."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import headrace as hr
from headrace.models.config import ModelConfig
from headrace.models.network import build


def train(job: dict[str, Any], report: Callable[[float], None]) -> int:
    network = build(ModelConfig(**job["model"]), seed=0)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=job["learning_rate"], betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    with hr.Loader(job["cache"], job["batch_size"], job["sequence_length"]) as loader:
        for _ in range(job["num_steps"]):
            batch = next(loader)
            inputs = torch.from_numpy(batch.inputs.astype(np.int64))
            targets = torch.from_numpy(batch.targets.astype(np.int64))
            logits = network.logits(network(inputs))
            loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            report(float(loss.detach()))
    return sum(parameter.numel() for parameter in network.parameters())
