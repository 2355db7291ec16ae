"""Energy from a machine's counters, which are files here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import headrace as hr
from headrace.interop.model_card import CardFacts, model_card
from headrace.machine.energy import EnergyMeter
from tests.conftest import make_text
from tests.run.tiny_run import settings

RANGE_UJ = 262_143_328_850


def make_zone(powercap: Path, number: str, name: str, energy_uj: int) -> Path:
    zone = powercap / f"intel-rapl:{number}"
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{name}\n")
    (zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    return zone / "energy_uj"


def test_packages_and_memory_are_counted_once_each(tmp_path: Path) -> None:
    first = make_zone(tmp_path, "0", "package-0", 5_000_000)
    second = make_zone(tmp_path, "1", "package-1", 0)
    parts = [make_zone(tmp_path, "0:0", "core", 0), make_zone(tmp_path, "2", "psys", 0)]
    memory = make_zone(tmp_path, "0:1", "dram", 0)
    meter = EnergyMeter(tmp_path)
    assert meter.joules() == {"processor": 0.0, "memory": 0.0}
    first.write_text("7000000\n")
    second.write_text("1000000\n")
    memory.write_text("500000\n")
    for part in parts:
        part.write_text("900000000\n")
    assert meter.joules() == pytest.approx({"processor": 3.0, "memory": 0.5})
    assert meter.joules() == pytest.approx({"processor": 3.0, "memory": 0.5})


def test_a_counter_that_begins_again_goes_on(tmp_path: Path) -> None:
    file = make_zone(tmp_path, "0", "package-0", RANGE_UJ - 1_000_000)
    meter = EnergyMeter(tmp_path)
    file.write_text("2000000\n")
    assert meter.joules() == pytest.approx({"processor": 3.0})


def test_what_the_machine_does_not_say_is_unknown(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path / "nothing").joules() == {}
    file = make_zone(tmp_path, "0", "package-0", 0)
    meter = EnergyMeter(tmp_path)
    file.unlink()  # as where only root may read it
    assert meter.joules() == EnergyMeter(tmp_path).joules() == {}


def test_accelerators_are_asked_by_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    energies = {"GPU-a": 1_000, "GPU-b": 5_000}
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetTotalEnergyConsumption=lambda name: energies[name],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid="ab"[number]))
    meter = EnergyMeter(tmp_path)
    energies["GPU-b"] += 2_500
    assert meter.joules() == {"accelerators": 2.5}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    make_zone(tmp_path, "0", "package-0", 0)
    assert EnergyMeter(tmp_path).joules() == {}, "a part of the energy is not the energy of a run"


def test_a_run_records_its_energy_over_all_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))

    class Meter:
        """A machine that takes ten joules a session."""

        def joules(self) -> dict[str, float]:
            return {"processor": 10.0}

    monkeypatch.setattr("headrace.run.pretraining.EnergyMeter", Meter)
    values = settings(tmp_path / "a.txt", tmp_path / "run", **{"training.max_steps": 2})
    assert hr.train(**values).energy_joules == {"processor": 10.0}
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["energy_joules"] == {"processor": 10.0}
    resumed = hr.train(**{**values, "training.max_steps": 4, "run.resume": True})
    assert resumed.energy_joules == {"processor": 20.0}

    monkeypatch.setattr(Meter, "joules", lambda self: {})
    unknown = hr.train(**{**values, "training.max_steps": 6, "run.resume": True})
    assert unknown.energy_joules == {}, "of one session it is not known, so of all it is not"


@pytest.mark.parametrize(
    ("joules", "said"),
    [
        ({"processor": 5_400.0, "memory": 1_800.0}, "2.0 Wh (processor, memory), other programs included"),
        ({"processor": 50.0}, "50 J (processor), other programs included"),
        ({}, "unknown: the machine did not say"),
    ],
)
def test_the_card_says_the_energy_or_that_it_is_unknown(joules: dict[str, float], said: str) -> None:
    facts = CardFacts("mine", "me/mine", "mit", {}, 1, 1, {"train_seconds": 1.0, "energy_joules": joules}, {})
    assert f"| energy | {said} |" in model_card(facts)
