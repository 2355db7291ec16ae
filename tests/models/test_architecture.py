"""The facts that architectures state of themselves, against the networks that they build."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from headrace.models.architecture import architecture_names, find_architecture
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.kernels import Attention
from headrace.models.memory import estimated_activation_bytes_per_token, weight_copy_bytes
from headrace.models.network import build
from headrace.training.execution import Execution, Precision
from headrace.training.ways.activations import LENGTH, activation_bytes_per_token, kept_bytes

ROTARY = ("llama", "qwen3")
GROUPED = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 72}
VARIATIONS: list[dict[str, Any]] = [{}, {"bias": False}, {"tie_embeddings": False}, {"d_ff": 96, "num_heads": 2}]


@pytest.mark.parametrize(
    ("arch", "variation"),
    [
        *((arch, variation) for arch in architecture_names() for variation in VARIATIONS),
        *((arch, GROUPED) for arch in ROTARY),
    ],
)
def test_counts_and_matrices_are_those_of_the_network(arch: str, variation: dict[str, Any]) -> None:
    config = ModelConfig(arch=arch, d_model=64, num_layers=2, vocab_size=400, context=32, **variation)
    network = build(config)
    counts = count(config, 32)
    assert counts.num_parameters == sum(parameter.numel() for parameter in network.parameters())
    matrices = {name: tuple(p.shape) for name, p in network.blocks[0].named_parameters() if p.dim() == 2}
    stated = find_architecture(arch).block_matrices(config)
    assert {matrix.name: (matrix.stacked * matrix.rows, matrix.columns) for matrix in stated} == matrices
    assert counts.block_weights == 2 * sum(rows * columns for rows, columns in matrices.values())


@pytest.mark.parametrize(
    "arch",
    [*({"arch": name} for name in architecture_names()), *({"arch": name, **GROUPED} for name in ROTARY)],
    ids=str,
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("attention", ["fused", "products"])
def test_activations_are_estimated_near_what_is_counted(
    arch: dict[str, Any], precision: Precision, attention: Attention
) -> None:
    config = ModelConfig(**arch, d_model=256, num_layers=4, vocab_size=257, context=64)
    network = build(config)
    execution = Execution(1, precision, attention=attention)
    per_token = activation_bytes_per_token(network, execution, LENGTH)
    estimated = estimated_activation_bytes_per_token(config, precision, attention, LENGTH)
    assert estimated == pytest.approx(per_token, rel=0.05)
    shared = kept_bytes(network, execution, 1, LENGTH) - LENGTH * per_token
    assert weight_copy_bytes(count(config, LENGTH), precision) == pytest.approx(shared, abs=20_000), "but for angles"


def test_names_are_known_without_torch() -> None:
    check = "import sys, headrace.models.config, headrace.models.counts; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
