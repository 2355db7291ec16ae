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
