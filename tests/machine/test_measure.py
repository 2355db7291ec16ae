"""The machine is measured; nothing here depends on how fast it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.machine import measure, peak


@pytest.fixture
def small_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "SIZES", (16, 32))
    for name in ("_STREAM_BYTES", "_DISK_BYTES", "_FRESH_BYTES"):
        monkeypatch.setattr(measure, name, 1 << 20)


def test_everything_is_measured(small_measurements: None, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    found = measure.measure(tmp_path, 2, seconds=0.01)
    assert set(found.matmul_flops) == {"float32", "bfloat16"}
    assert all(set(rates) == {1, 2} and min(rates.values()) > 0 for rates in found.matmul_flops.values())
    assert found.memory_bandwidth > 0
    assert found.fresh_memory_rate > 0
    assert torch.get_num_threads() == threads
    assert not list(tmp_path.iterdir())
    assert found.peak_flops("float32", 3) == found.matmul_flops["float32"][2]
    assert found.peak_flops("float16", 1) is None


def test_a_disk_that_cannot_be_measured_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert measure.measure_disk_read_rate(tmp_path / "file") is None
    monkeypatch.delattr(measure.os, "posix_fadvise", raising=False)
    assert measure.measure_disk_read_rate(tmp_path) is None
