"""Every way of computing a step against the same network in plain PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.models.config import ModelConfig
from headrace.models.network import Network, build
from headrace.training.execution import Execution
from headrace.training.step import accumulate
from tests.models.plain import plain_loss

LENGTH = 140  # more than one block of queries
WAYS = [
    Execution(4),
    Execution(2, matmul="onednn"),
    Execution(2, attention="products"),
    Execution(4, matmul="onednn", attention="products", head_chunk_bytes=1),
    Execution(4, attention="products", gradient_checkpointing=True),
    Execution(4, "bfloat16"),
    Execution(2, "bfloat16", attention="products"),
    Execution(4, "bfloat16", attention="products", gradient_checkpointing=True, head_chunk_bytes=1),
]
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}


def describe(way: Any) -> str:
    checkpointing = "-checkpointing" if way.gradient_checkpointing else ""
    return f"{way.precision}-{way.matmul}-{way.attention}-{way.micro_batch_size}{checkpointing}"


def network_of(arch: str) -> Network:
    shape = {"d_model": 32, "num_heads": 2, "num_layers": 2, "vocab_size": 50, "context": LENGTH}
    network = build(ModelConfig(arch=arch, **shape), seed=1)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # as after some training: norms are not one, biases not zero, attention is not even
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.15)
    return network


def gradients(network: Network) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=describe)
def test_loss_and_gradients_are_those_of_plain_pytorch(arch: str, has_documents: bool, way: Execution) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50, (4, LENGTH + 1))
    documents = np.cumsum(rng.random((4, LENGTH)) < 0.03, axis=1).astype(np.int32) if has_documents else None
    network = network_of(arch)
    loss, _ = accumulate(Replica(network), Batch(0, tokens[:, :-1], tokens[:, 1:], documents), way)
    ours = gradients(network)
    network.zero_grad()
    inputs, targets = torch.from_numpy(tokens[:, :-1]), torch.from_numpy(tokens[:, 1:])
    expected = plain_loss(network, inputs, targets, None if documents is None else torch.from_numpy(documents))
    expected.backward()  # type: ignore[no-untyped-call]
    theirs = gradients(network)
    tolerance = TOLERANCES[way.precision]
    assert loss == pytest.approx(float(expected.detach()), rel=tolerance)
    assert (ours - theirs).norm() < tolerance * theirs.norm()
