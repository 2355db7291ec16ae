"""The numbers that people quote, on figures worked out by hand."""

from __future__ import annotations

import pytest

from headrace.perf import breakdown, roofline, speed


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
