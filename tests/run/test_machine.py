from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.machine.measure import Measurements
from headrace.run import machine as recipe

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Counts how often the machine was measured; it always comes out the same."""
    times: list[int] = []

    def measure(folder: Path, usable_threads: int) -> Measurements:
        times.append(usable_threads)
        rates = {"float32": {1: 1e11, 2: 2e11}, "bfloat16": {1: 2e11, 2: 4e11}}
        return Measurements(rates, 2e10, None, 1e9, busy_cores=1.5, taken_percent=taken_percent)

    taken_percent = 0.0

    monkeypatch.setattr(recipe, "measure", measure)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return times


def test_a_machine_is_measured_once(measured: list[int]) -> None:
    assert recipe.remembered_machine() is None
    first = recipe.know_machine()
    second = recipe.know_machine()
    assert len(measured) == 1
    assert (first.is_remembered, second.is_remembered) == (False, True)
    assert second.measurements == first.measurements
    recipe.know_machine(fresh=True)
    assert len(measured) == 2


def test_a_disturbed_measurement_is_said_and_not_remembered(
    command: Command, monkeypatch: pytest.MonkeyPatch, measured: list[int]
) -> None:
    quiet = recipe.know_machine().measurements
    busy = Measurements({"float32": {1: 1e10}, "bfloat16": {1: 1e10}}, 2e9, None, 1e8, 1.5, taken_percent=60.0)
    monkeypatch.setattr(recipe, "measure", lambda *_: busy)
    code, out, _ = command("machine", "--fresh")
    assert code == 0
    assert "other programs had the processor for 60% of the time meanwhile" in " ".join(out.split())
    known = recipe.remembered_machine()
    assert known is not None
    assert known.measurements == quiet, "what was measured in peace stays"


def test_damaged_or_unwritable_memory_is_measured_anew(measured: list[int], tmp_path: Path) -> None:
    recipe.know_machine()
    (path,) = (tmp_path / "cache" / "machines").iterdir()
    path.write_text(path.read_text().replace("2e", "3e").replace("200000000000", "300000000000"))
    recipe.know_machine()
    assert len(measured) == 2
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("in the way")
    recipe.know_machine()
    assert len(measured) == 3


def test_the_command(command: Command, measured: list[int]) -> None:
    code, out, _ = command("machine", "--json")
    assert code == 0
    facts = json.loads(out.splitlines()[-1])
    assert facts["measurements"]["matmul_flops"]["float32"] == {"1": 1e11, "2": 2e11}
    assert facts["measurements"]["disk_read_rate"] is None
    assert "disk read         unknown" in out
    assert "200 GFLOP/s" in out
    assert "other processes used 1.5 cores" in out
    assert facts["fingerprint"] in out.splitlines()[-3]
