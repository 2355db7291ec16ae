"""Energy that the machine used, where it counts it: RAPL for processors (Linux), NVML for accelerators.

    meter = EnergyMeter()
    ...
    meter.joules()  # {"processor": 812.4, "memory": 61.0}; {} where the machine does not say

The counters are those of the whole machine: what other programs used meanwhile is in them. Most systems let only root
read RAPL (`energy_uj`), and virtual machines rarely have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

POWERCAP = Path("/sys/class/powercap")
_PARTS = {"package": "processor", "dram": "memory"}
"""Zones of RAPL that are no part of each other, by the beginning of their name. `core` is a part of the package."""


@dataclass
class _Counter:
    """A counter of energy that may begin again from zero."""

    part: str
    read: Callable[[], float]
    """Returns joules since some moment in the past."""
    range_joules: float = 0.0
    """Where the counter begins again; 0: it never does."""
    last: float = 0.0


class EnergyMeter:
    """A meter of the joules by part since it was made. Read it every few minutes: counters begin again from zero."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._joules: dict[str, float] = {}
        try:
            self._counters = [*_processor_counters(powercap), *_accelerator_counters()]
            for counter in self._counters:
                counter.last = counter.read()
                self._joules[counter.part] = 0.0
        except Exception:  # a driver's library may raise what it likes: the energy is then not known
            self._give_up()

    def joules(self) -> dict[str, float]:
        """Return the energy by part since the meter was made; nothing where it is not known, or no longer."""
        try:
            for counter in self._counters:
                now = counter.read()
                used = now - counter.last
                if used < 0:
                    used += counter.range_joules
                if used < 0:
                    raise ValueError(f"the counter of {counter.part} ran backwards")
                counter.last = now
                self._joules[counter.part] += used
        except Exception:
            self._give_up()
        return dict(self._joules)

    def _give_up(self) -> None:
        self._counters, self._joules = [], {}


def _processor_counters(powercap: Path) -> Iterator[_Counter]:
    """Yield the counters of processors and their memory. AMD's are named intel-rapl too."""
    for zone in sorted(powercap.glob("intel-rapl:*")):
        part = _PARTS.get((zone / "name").read_text(encoding="utf-8").strip().partition("-")[0])
        if part is not None:
            most = float((zone / "max_energy_range_uj").read_text(encoding="utf-8")) / 1e6
            yield _Counter(part, lambda file=zone / "energy_uj": float(file.read_text(encoding="utf-8")) / 1e6, most)  # type: ignore[misc]


def _accelerator_counters() -> Iterator[_Counter]:
    """Yield the counters of CUDA devices, by the package nvidia-ml-py."""
    if not torch.cuda.is_available():
        return
    nvml: Any = import_module("pynvml")
    nvml.nvmlInit()
    for number in range(torch.cuda.device_count()):
        device = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(number).uuid}")
        yield _Counter(
            "accelerators", lambda device=device: nvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3  # type: ignore[misc]
        )  # fmt: skip
