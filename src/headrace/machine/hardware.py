"""The hardware of this machine. What cannot be found out is None or empty, never guessed."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import torch

from headrace.files import canonical_json, digest

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MEMORY_USED = Path("/sys/fs/cgroup/memory.current")
_MEMORY_FIELDS = Path("/sys/fs/cgroup/memory.stat")
# Instructions that make low precision fast; without them it is slower than float32.
_FAST_FORMATS = ("avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_bf16", "amx_int8", "bf16", "asimdhp")


@dataclass(frozen=True)
class Hardware:
    """Facts that stay the same as long as the machine does."""

    host: str
    system: str
    processor: str
    cores: int | None
    """Physical cores."""
    usable_threads: int
    """Logical processors that this process may run on."""
    simd: str
    """Instruction set that torch's kernels use, such as AVX2 or AVX512."""
    fast_formats: list[str] = field(default_factory=list)
    """Instruction sets for bfloat16, float16 and int8."""
    caches_bytes: dict[str, int] = field(default_factory=dict)
    """Cache sizes by name (L1d, L2, L3), as one core sees them; empty where the system does not say."""
    memory_bytes: int = 0
    """Memory that this process may use: the machine's, or the limit of its container."""
    accelerators: list[str] = field(default_factory=list)
    torch: str = torch.__version__

    @property
    def fingerprint(self) -> str:
        """A digest of all facts: while it stays the same, measurements on this machine hold."""
        return digest(canonical_json(asdict(self)))[:16]


def find_hardware() -> Hardware:
    """Collect the facts about this machine's hardware."""
    return Hardware(
        host=socket.gethostname(),
        system=platform.platform(),
        processor=processor_name(),
        cores=psutil.cpu_count(logical=False),
        usable_threads=_usable_threads(),
        simd=torch.backends.cpu.get_cpu_capability(),
        fast_formats=_fast_formats(),
        caches_bytes=_caches(),
        memory_bytes=usable_memory_bytes(),
        accelerators=_accelerators(),
    )


def processor_name() -> str:
    """Return the model of the processor."""
    return _cpuinfo("model name") or platform.processor() or "unknown"


def available_memory_bytes() -> int:
    """Return the memory that is free now, without swapping and within the limit of a container."""
    available = int(psutil.virtual_memory().available)
    try:
        used = int(_MEMORY_USED.read_text(encoding="utf-8")) - _file_cache_bytes()
        return min(available, int(_MEMORY_LIMIT.read_text(encoding="utf-8")) - used)
    except (OSError, ValueError):
        return available


def _file_cache_bytes() -> int:
    """Return the part of the container's memory that caches files, which is given up when it is needed."""
    try:
        fields = dict(line.split() for line in _MEMORY_FIELDS.read_text(encoding="utf-8").splitlines())
    except OSError:
        return 0
    return int(fields.get("active_file", 0)) + int(fields.get("inactive_file", 0))


def disk_of(folder: Path) -> dict[str, str | int]:
    """Describe the disk that holds a folder, or its nearest ancestor that exists."""
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    usage = psutil.disk_usage(str(place))
    mounts = {part.mountpoint: part for part in psutil.disk_partitions(all=True)}
    mount = next((str(p) for p in (place, *place.parents) if str(p) in mounts), "")
    kind = mounts[mount].fstype if mount else "unknown"
    return {"folder": str(place), "filesystem": kind, "total_bytes": usage.total, "free_bytes": usage.free}


def _usable_threads() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux knows
        return os.cpu_count() or 1


def _cpuinfo(key: str) -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.split(":")[0].strip() == key)
    except (OSError, StopIteration):
        return ""


def _fast_formats() -> list[str]:
    flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    return [name for name in _FAST_FORMATS if name in flags]


def _caches() -> dict[str, int]:
    caches: dict[str, int] = {}
    for index in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text(encoding="utf-8").strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K"):
            caches[f"L{level}" + ("d" if kind == "Data" else "")] = int(size[:-1]) * 1024
    return caches


def usable_memory_bytes() -> int:
    """Return all memory of the machine, or the limit of the container."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(_MEMORY_LIMIT.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # no container, or "max"
        return total


def _accelerators() -> list[str]:
    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return ["Apple GPU (MPS)"] if torch.backends.mps.is_available() else []
