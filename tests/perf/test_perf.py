"""The numbers that people quote, on figures worked out by hand."""

from __future__ import annotations

import pytest

from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.perf import breakdown, flops, memory, roofline, speed

MODEL = ModelConfig(arch="gpt2", d_model=64, num_heads=2, num_layers=2, vocab_size=100, context=32, bias=False)


def test_speed() -> None:
    assert speed.tokens_per_second(1000, 4.0) == 250
    assert speed.percent_of_peak(3e9, 2.0, 1e10) == pytest.approx(15)
    assert speed.percent_of_peak(3e9, 2.0, None) is None
    assert speed.median([0.0, 0.0, 50.0]) == 0.0
    assert speed.median([]) == 0.0


@pytest.mark.parametrize("wall_s", [None, 10.0, 20.0])
def test_a_breakdown_sums_to_100(wall_s: float | None) -> None:
    shares = breakdown.break_down({"data wait": 1.0, "forward": 3.0, "backward": 5.0}, wall_s)
    assert sum(share.percent for share in shares) == pytest.approx(100)
    assert shares[-1].stage == "other"
    assert shares[-1].seconds == pytest.approx((wall_s or 9.0) - 9.0)


@pytest.mark.parametrize("stage", ["data wait", "optimizer", "evaluation", "saving", "other"])
def test_the_bottleneck_follows_what_is_slow(stage: str) -> None:
    seconds = dict.fromkeys(["data wait", "forward", "backward", "optimizer", "evaluation", "saving"], 0.1)
    assert breakdown.find_bottleneck(breakdown.break_down(seconds), 70.0).name.startswith("computing")
    found = breakdown.find_bottleneck(breakdown.break_down({**seconds, stage: 2.0}), 70.0)
    assert found.name == stage
    assert f"{stage} takes" in found.evidence
    assert found.remedy


def test_computing_is_told_apart_by_the_peak() -> None:
    shares = breakdown.break_down({"forward": 1.0, "backward": 2.0})
    assert "matrix products" in breakdown.find_bottleneck(shares, 80.0).name
    assert "overhead" in breakdown.find_bottleneck(shares, 20.0).name
    assert "unknown" in breakdown.find_bottleneck(shares, None).evidence


def test_what_others_take_comes_before_every_stage() -> None:
    shares = breakdown.break_down({"data wait": 6.0, "forward": 1.0, "backward": 2.0})
    found = breakdown.find_bottleneck(shares, 3.0, taken_percent=70.0)
    assert found.name == "processor taken by others"
    assert "70%" in found.evidence
    assert breakdown.find_bottleneck(shares, 3.0, taken_percent=5.0).name == "data wait"
    assert breakdown.find_bottleneck(shares, 3.0, taken_percent=None).name == "data wait"


def test_work_by_part_and_phase() -> None:
    work = flops.count_work(MODEL, sequence_length=32, num_tokens=10, optimizer="muon")
    assert work.flops["head"]["forward"] == 2 * 100 * 64 * 10
    assert work.flops["embedding"] == {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
    square = 5 * (4 * 64**3 + 2 * 64**3)
    assert work.flops["attention"]["optimizer"] == 2 * 4 * square
    timed = work.timed_flops
    assert sum(timed.values()) == pytest.approx(sum(work.phase_flops(phase) for phase in flops.PHASES))
    trained = count(MODEL, 32).training_flops_per_token * 10
    assert timed["forward"] + timed["backward"] == pytest.approx(trained)
    again = flops.count_work(MODEL, 32, 10, "adamw", checkpointing=True)
    assert again.phase_flops("backward") > work.phase_flops("backward")
    assert again.phase_flops("optimizer") == 0


def test_roofline() -> None:
    points = roofline.roofline_points(
        {"forward": 1e9, "optimizer": 1e6, "backward": 0.0},
        {"forward": 1e6, "optimizer": 1e6, "backward": 1e6},
        {"forward": 0.02, "optimizer": 0.001, "backward": 1.0},
        peak_flops=1e11,
        bandwidth=1e10,
    )
    assert [(point.name, point.bound) for point in points] == [("forward", "compute"), ("optimizer", "memory")]
    assert points[0].achieved_flops == pytest.approx(5e10)
    assert points[1].attainable_flops == pytest.approx(1e10)


def test_memory_parts() -> None:
    counts = count(MODEL, 32)
    assert memory.matrix_parameters(MODEL) == 2 * 12 * 64 * 64
    adamw = memory.optimizer_bytes(MODEL, counts, "adamw")
    assert adamw == 8 * counts.num_parameters
    assert adamw - memory.optimizer_bytes(MODEL, counts, "muon") == 4 * memory.matrix_parameters(MODEL)
    parts = memory.memory_parts(MODEL, counts, "adamw", 64, 1000.0, 1 << 20, loader_bytes=7, runtime_bytes=11)
    assert parts.total == sum(parts.as_dict().values())
    assert parts.activations == 64_000
    assert parts.head_buffer == 2 * 4 * 64 * 100 + 4 * 100 * 64 + 4 * 64 * 64
