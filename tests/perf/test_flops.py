from __future__ import annotations

import pytest
import torch

from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.perf import flops
from headrace.training.optimizers.assignment import state_bytes, update_flops

MODEL = ModelConfig(arch="gpt2", d_model=64, num_heads=2, num_layers=2, vocab_size=100, context=32, bias=False)


def test_work_by_part_and_phase() -> None:
    work = flops.count_work(MODEL, 32, 10, update_flops(MODEL, "muon", torch.float32))
    assert work.flops["head"]["forward"] == 2 * 100 * 64 * 10
    assert work.flops["embedding"] == {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
    square = 4 * (4 * 64**3 + 2 * 64**3)
    assert work.flops["attention"]["optimizer"] == 2 * 4 * square
    timed = work.timed_flops
    assert sum(timed.values()) == pytest.approx(sum(work.phase_flops(phase) for phase in flops.PHASES))
    trained = count(MODEL, 32).training_flops_per_token * 10
    assert timed["forward"] + timed["backward"] == pytest.approx(trained)
    again = flops.count_work(MODEL, 32, 10, update_flops(MODEL, "adamw", torch.float32), gradient_checkpointing=True)
    assert again.phase_flops("backward") > work.phase_flops("backward")
    assert again.phase_flops("optimizer") == 0


def test_traffic_of_an_update_counts_weights_activations_and_state() -> None:
    work = flops.count_work(MODEL, 32, 10, {})
    weights = 4 * work.counts.num_parameters
    traffic = flops.least_traffic(work, 2, 1000.0, state_bytes(work.counts, "adamw"))
    expected = {"forward": 2 * weights + 1000, "backward": 6 * weights + 2000, "optimizer": 7 * weights}
    assert traffic == expected
