"""How long from Enter to the first word on the screen and to the first step, for every preset.

Teaches: what a person waits for before training begins. Whole commands, each in a process and with a user cache of its
own: `--help` and `--version`; `train` on 2 MB of text that it has never seen, tokenizer training included; and the same
command again. "To the first step" is until the first step begins to be computed as a real one: how long it then takes
is a matter of the preset (minutes for gpt2-small). The second command finds the tokens; how to compute steps is chosen
during the first ones, so a remembered choice makes a start no slower, and none is waited for here.

On a machine that others use too, wall time says more about them: processor seconds are printed beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from corpora import write_text

from headrace.run.presets import PRESETS

LIMITS = {"help": 0.4, "first_word": 1.0, "never_seen": 12.0, "seen_before": 5.0}
CORPUS_BYTES = 2_000_000
BEGINS = "computing step 1"
QUICK = {"help": ["--help"], "version": ["--version"], "train_help": ["train", "--help"]}


@dataclass
class Start:
    """Seconds from Enter."""

    first_word_s: float
    first_step_s: float
    processor_s: float
    """Processor time until the first step."""


def start(arguments: list[str], environment: dict[str, str]) -> Start:
    """Start a training, and end it when its first step begins."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "headrace", "train", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    assert process.stderr is not None
    first_word_s, lines = 0.0, []
    for line in process.stderr:
        first_word_s = first_word_s or time.perf_counter() - began
        lines.append(line)
        if line.strip() == BEGINS:
            break
    else:
        raise SystemExit(f"{' '.join(command)} ended before its first step:\n{''.join(lines)}")
    first_step_s = time.perf_counter() - began
    process.kill()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    process.stderr.close()
    return Start(first_word_s, first_step_s, usage.ru_utime + usage.ru_stime)


def quick(arguments: list[str], repeats: int) -> float:
    """Return the median time of a command that only prints."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "headrace", *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def both_starts(preset: str, text: Path, folder: Path) -> dict[str, Start]:
    """Start a preset on text that it has never seen, and again."""
    environment = {**os.environ, "HEADRACE_CACHE": str(folder / "cache")}
    found = {}
    for case in ("never_seen", "seen_before"):
        found[case] = start(["--preset", preset, str(text), "--out", str(folder / case)], environment)
        one = found[case]
        print(
            f"{preset:18} {case:12} first word {one.first_word_s:5.2f} s, first step {one.first_step_s:6.2f} s"
            f" ({one.processor_s:5.2f} s of processor time)",
            flush=True,
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="of --help and --version")
    parser.add_argument("--presets", nargs="*", default=list(PRESETS), choices=list(PRESETS))
    options = parser.parse_args()
    result: dict[str, object] = {"limits": LIMITS}
    is_passed = True
    for name, arguments in QUICK.items():
        seconds = quick(arguments, options.repeats)
        print(f"headrace {' '.join(arguments)}: {seconds:.2f} s", flush=True)
        result[f"{name}_s"] = round(seconds, 3)
        is_passed &= seconds <= LIMITS["help"]
    presets = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        text = write_text(Path(folder) / "corpus.txt", CORPUS_BYTES)
        for preset in options.presets:
            found = both_starts(preset, text, Path(folder) / preset)
            presets[preset] = {case: vars(one) for case, one in found.items()}
            for case, one in found.items():
                is_passed &= one.first_step_s <= LIMITS[case] and one.first_word_s <= LIMITS["first_word"]
    print(json.dumps({**result, "presets": presets, "passed": is_passed}))
    return 0 if is_passed else 1


if __name__ == "__main__":
    sys.exit(main())
