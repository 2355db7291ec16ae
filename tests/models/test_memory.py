"""The memory of passes, estimated from the shape of a network."""

from __future__ import annotations

from headrace.models import memory
from headrace.models.config import ModelConfig

MODEL = ModelConfig(arch="gpt2", d_model=64, num_heads=2, num_layers=2, vocab_size=100, context=32, bias=False)


def test_gradient_checkpointing_keeps_one_block_and_the_inputs_of_all() -> None:
    per_token = memory.estimated_activation_bytes_per_token(MODEL)
    assert per_token == 2 * (32 * 64 + 8 * 256)
    assert memory.checkpointed_bytes_per_token(MODEL, per_token) == 4 * 2 * 64 + per_token / 2
