"""How much longer two equal runs take at once than one alone.

Teaches: what a second program costs a run beyond its share of the processor. Whole commands, timed from outside until
the last one has ended; their text is tokenised, and how to compute steps is remembered, by a run before the first
round. "Alone" and "two at once" take turns; the median of the ratios counts. Sharing the processor perfectly is 2.0.
A third run, alone, lets its threads wait as OpenMP does by default: what brief waiting costs when nobody else is there.

The ratios mean something only where nobody else uses the machine: the share that others had is printed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from corpora import write_text

LIMIT = 2.3
STEPS = {"shakespeare-char": 300, "development": 12, "wiki": 6}
CORPUS_BYTES = 1_000_000
SPINNING = {"GOMP_SPINCOUNT": "300000"}
"""What libgomp does by default."""


@dataclass
class Ratios:
    """What was measured of a preset."""

    ratio: float
    """Median time of two runs at once to one alone."""
    ratios: list[float]
    alone_to_spinning: float
    """Median time of one alone to one alone whose threads spin."""


class OthersClock:
    """The share of the processor that neither this process nor its children had since a moment."""

    def __init__(self) -> None:
        self._began, self._ours = psutil.cpu_times(), self._our_seconds()

    @staticmethod
    def _our_seconds() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    def percent(self) -> float:
        """Return the share by now."""
        passed = [now - then for now, then in zip(psutil.cpu_times(), self._began, strict=True)]
        total = sum(passed)
        idle = psutil.cpu_times().idle - self._began.idle
        return max(0.0, 100 * (total - idle - (self._our_seconds() - self._ours)) / max(total, 1e-9))


def run_at_once(number: int, arguments: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Run the same training several times at once; return the seconds until the last one has ended."""
    began = time.perf_counter()
    started = []
    for _ in range(number):
        out = tempfile.mkdtemp(dir=folder)
        command = [sys.executable, "-m", "headrace", "train", *arguments, "--out", f"{out}/run"]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for process in started:
        _, said = process.communicate()
        if process.returncode:
            raise SystemExit(said.decode())
    return time.perf_counter() - began


def measure(preset: str, text: Path, folder: Path, rounds: int) -> Ratios:
    """Return the ratios of a preset's rounds."""
    environment = {**os.environ, "HEADRACE_CACHE": str(folder / "cache")}
    arguments = ["--preset", preset, str(text), f"training.max_steps={STEPS[preset]}"]
    run_at_once(1, arguments, folder, environment)
    ratios, costs = [], []
    for _ in range(rounds):
        others = OthersClock()
        alone_s = run_at_once(1, arguments, folder, environment)
        both_s = run_at_once(2, arguments, folder, environment)
        spinning_s = run_at_once(1, arguments, folder, {**environment, **SPINNING})
        ratios.append(both_s / alone_s)
        costs.append(alone_s / spinning_s)
        print(
            f"{preset:18} alone {alone_s:6.1f} s, two at once {both_s:6.1f} s: {ratios[-1]:.2f} x; alone with threads"
            f" that spin {spinning_s:6.1f} s (other programs had {others.percent():.0f}% of the processor)",
            flush=True,
        )
    return Ratios(statistics.median(ratios), ratios, statistics.median(costs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="*", default=["shakespeare-char", "development"], choices=list(STEPS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    others = OthersClock()
    found = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as temporary:
        folder = Path(temporary)
        text = write_text(folder / "corpus.txt", CORPUS_BYTES)
        for preset in options.presets:
            found[preset] = measure(preset, text, folder, options.rounds)
    passed = all(one.ratio <= LIMIT for one in found.values())
    result = {
        "benchmark": "busy_machine",
        "limit": LIMIT,
        "presets": {name: asdict(one) for name, one in found.items()},
    }
    print(json.dumps({**result, "others_percent": others.percent(), "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
