"""Realistic text in any amount, the same every time, for the benchmarks: real lines in ever new order.

Uses ../shared/data where it is, else the Python standard library on this disk.
"""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def real_lines() -> list[bytes]:
    """Return lines of real text, a few MB of them."""
    files = sorted(SHARED.glob("*.txt")) or sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return [line for file in files for line in file.read_bytes().splitlines(keepends=True)]


def write_text(path: Path, nbytes: int, seed: int = 0) -> Path:
    """Write a text file of about this size, unless it is there already; return its path."""
    if path.exists() and abs(path.stat().st_size - nbytes) < 8 << 20:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = real_lines()
    shuffle = random.Random(seed).shuffle
    written = 0
    with open(path, "wb") as file:
        while written < nbytes:
            shuffle(lines)
            block = b"".join(lines)[: nbytes - written]
            file.write(block)
            written += len(block)
    return path
