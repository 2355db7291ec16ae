from __future__ import annotations

import pytest

from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.training.activations import activation_bytes_per_token


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
def test_kept_bytes_grow_with_layers_and_shrink_with_checkpointing(arch: str) -> None:
    def kept(layers: int, checkpointing: bool) -> float:
        shape = {"d_model": 64, "num_layers": layers, "vocab_size": 50, "context": 32}
        network = build(ModelConfig(arch=arch, **shape))  # type: ignore[arg-type]
        network.checkpoint_blocks = checkpointing
        return activation_bytes_per_token(network)

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
    network.checkpoint_blocks = checkpointing
    assert activation_bytes_per_token(network, "bfloat16") < activation_bytes_per_token(network)
