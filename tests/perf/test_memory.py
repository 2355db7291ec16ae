from __future__ import annotations

from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.perf import memory
from headrace.training.optimizers.assignment import state_bytes

MODEL = ModelConfig(arch="gpt2", d_model=64, num_heads=2, num_layers=2, vocab_size=100, context=32, bias=False)


def test_memory_parts() -> None:
    counts = count(MODEL, 32)
    assert counts.block_weights == 2 * 12 * 64 * 64
    adamw = state_bytes(counts, "adamw")
    assert adamw == 8 * counts.num_parameters
    assert adamw - state_bytes(counts, "muon") == 4 * counts.block_weights
    parts = memory.memory_parts(MODEL, counts, adamw, 64, 1000.0, 1 << 20, loader_bytes=7, runtime_bytes=11)
    assert parts.total == sum(parts.as_dict().values())
    assert parts.optimizer == adamw
    assert parts.activations == 64_000
    assert parts.head_buffer == 4 * 64 * 100 + 4 * 100 * 64 + 4 * 64 * 64


def test_gradient_checkpointing_keeps_one_block_and_the_inputs_of_all() -> None:
    per_token = memory.estimated_activation_bytes_per_token(MODEL)
    assert per_token == 2 * (32 * 64 + 8 * 256)
    assert memory.checkpointed_bytes_per_token(MODEL, per_token) == 4 * 2 * 64 + per_token / 2
