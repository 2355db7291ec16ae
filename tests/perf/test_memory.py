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
