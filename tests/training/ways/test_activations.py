from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.training.execution import Execution
from headrace.training.ways.activations import activation_bytes_per_token, kept_bytes


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
def test_kept_bytes_grow_with_layers_and_shrink_with_checkpointing(arch: str) -> None:
    def kept(layers: int, checkpointing: bool) -> float:
        shape = {"d_model": 64, "num_layers": layers, "vocab_size": 50, "context": 32}
        network = build(ModelConfig(arch=arch, **shape))  # type: ignore[arg-type]
        return activation_bytes_per_token(network, Execution(1, gradient_checkpointing=checkpointing), 32)

    one, two, four = kept(1, False), kept(2, False), kept(4, False)
    assert four - two == pytest.approx(2 * (two - one))
    # At least: input, queries, keys, values, attention, residual, two norms, and the feed-forward part twice.
    assert two - one >= 4 * 64 * (8 + 2 * 2)
    assert kept(4, True) < 0.6 * four


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_copies_of_weights_are_not_kept_for_each_token(arch: str, checkpointing: bool) -> None:
    """Autocast's copies in bfloat16 are there once, however many tokens a micro-batch has."""
    config = ModelConfig(arch=arch, d_model=512, num_layers=2, vocab_size=50, context=32)
    network = build(config)
    float32 = Execution(1, gradient_checkpointing=checkpointing)
    bfloat16 = replace(float32, precision="bfloat16")
    assert activation_bytes_per_token(network, bfloat16, 32) < activation_bytes_per_token(network, float32, 32)


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize("length", [24, 200])
def test_probabilities_that_are_kept_are_counted_at_the_real_length(arch: str, length: int) -> None:
    """Counting happens on short rows; a pass over rows of the real length keeps what is predicted from them."""
    network = build(ModelConfig(arch=arch, d_model=16, num_heads=2, num_layers=2, vocab_size=50, context=length))
    execution = Execution(1, attention="products")
    one, two = (kept_bytes(network, execution, rows, length) for rows in (1, 2))
    assert activation_bytes_per_token(network, execution, length) == pytest.approx((two - one) / length, rel=0.01)
