"""What the machine is and what it can do; nothing here depends on how fast it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.machine import hardware, measure, peak


@pytest.fixture
def small_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "SIZES", (16, 32))
    for name in ("_STREAM_BYTES", "_DISK_BYTES", "_FRESH_BYTES"):
        monkeypatch.setattr(measure, name, 1 << 20)


def test_facts_are_found_or_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = hardware.find_hardware()
    assert found.usable_threads >= 1
    assert found.memory_bytes > 0
    monkeypatch.setattr(hardware, "_CACHES", tmp_path / "none")
    monkeypatch.setattr(hardware, "_cpuinfo", lambda key: "")
    monkeypatch.setattr(hardware.platform, "processor", lambda: "")
    bare = hardware.find_hardware()
    assert bare.processor == "unknown"
    assert bare.caches_bytes == {}
    assert bare.fast_formats == []
    assert bare.fingerprint != found.fingerprint


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(hardware, "_MEMORY_LIMIT", limit)
    limit.write_text("max\n")
    whole = hardware.find_hardware().memory_bytes
    limit.write_text("1048576\n")
    assert hardware.find_hardware().memory_bytes == 1048576 < whole
    monkeypatch.setattr(hardware, "_MEMORY_USED", tmp_path / "memory.current")
    (tmp_path / "memory.current").write_text("1000000\n")
    monkeypatch.setattr(hardware, "_MEMORY_FIELDS", tmp_path / "memory.stat")
    assert hardware.available_memory_bytes() == 48576
    (tmp_path / "memory.stat").write_text("anon 5\nactive_file 20000\ninactive_file 30000\n")
    assert hardware.available_memory_bytes() == 98576, "what holds files can be taken"


def test_a_disk_is_found_under_a_folder_to_come(tmp_path: Path) -> None:
    disk = hardware.disk_of(tmp_path / "not" / "yet")
    assert disk["folder"] == str(tmp_path.resolve())
    assert 0 < int(disk["free_bytes"]) <= int(disk["total_bytes"])


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
