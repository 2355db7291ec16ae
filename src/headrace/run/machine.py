"""The machine: what it is, and what it was measured to do. Measured once, then remembered under its fingerprint."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headrace.errors import CacheError
from headrace.files import read_checked_json, user_cache, write_checked_json
from headrace.machine.contention import is_disturbed
from headrace.machine.hardware import Hardware, available_memory_bytes, disk_of, find_hardware
from headrace.machine.measure import Measurements, measure
from headrace.native.library import instructions, why_missing

FORMAT = 2


@dataclass(frozen=True)
class Machine:
    """The hardware of a machine and its measured rates; also what `machine --json` prints."""

    hardware: Hardware
    measurements: Measurements
    measured_at: str
    is_remembered: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "fingerprint": self.hardware.fingerprint,
            **asdict(self),
            "available_memory_bytes": available_memory_bytes(),
            "disk": disk_of(Path.cwd()),
            "native": {"instructions": instructions(), "why_missing": why_missing()},
        }


def know_machine(fresh: bool = False) -> Machine:
    """Return the remembered measurements of this machine, or new ones (a few seconds).

    Those that other programs disturbed are not remembered.
    """
    hardware = find_hardware()
    remembered = None if fresh else remembered_machine(hardware)
    if remembered is not None:
        return remembered
    machine = Machine(
        hardware, measure(user_cache(), hardware.usable_threads), time.strftime("%Y-%m-%d %H:%M"), is_remembered=False
    )
    if is_disturbed(machine.measurements.taken_percent):
        return machine
    try:
        path = _path(hardware)
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {"format": FORMAT, "measured_at": machine.measured_at, "measurements": asdict(machine.measurements)}
        write_checked_json(path, known)
    except (OSError, CacheError):
        pass  # a home folder that cannot be written costs a measurement each time, nothing else
    return machine


def remembered_machine(hardware: Hardware | None = None) -> Machine | None:
    """Return what was measured before on this very machine, if anything; never measure."""
    hardware = hardware or find_hardware()
    try:
        known = read_checked_json(_path(hardware))
    except (OSError, CacheError):
        return None
    if known.get("format") != FORMAT:
        return None
    try:
        measurements = TypeAdapter(Measurements).validate_python(known.get("measurements"))
        measured_at = TypeAdapter(str).validate_python(known.get("measured_at"))
    except ValidationError:
        return None
    return Machine(hardware, measurements, measured_at, is_remembered=True)


def _path(hardware: Hardware) -> Path:
    return user_cache() / "machines" / f"{hardware.fingerprint}.json"
