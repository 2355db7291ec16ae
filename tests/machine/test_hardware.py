"""The hardware is found, or unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.machine import hardware


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
