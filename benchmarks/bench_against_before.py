"""Tokens/s of the default recipe while it trains, against an earlier commit of headrace.

Teaches: what all changes since then are worth together. Both sides run the same command on the same text, in turns,
each in fresh folders; starting, evaluating and saving are left out, the first steps (in which the way to compute is
chosen) are not. Make the earlier side by `git worktree add FOLDER 73c484c`, the commit before "the whole run".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from corpora import write_text

from headrace.stages import PAUSES

TARGET = 1.45


def tokens_per_second(source: Path, text: Path, preset: str, steps: int) -> float:
    """Run `headrace train` by the code in a folder, and return its tokens per second of training."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        environment = {**os.environ, "PYTHONPATH": str(source / "src"), "HEADRACE_CACHE": str(Path(folder) / "cache")}
        options = [f"training.max_steps={steps}", f"training.evaluate_every={10 * steps}"]
        command = [sys.executable, "-P", "-m", "headrace", "train", "--preset", preset, str(text), "--out", str(out)]
        subprocess.run([*command, *options], check=True, capture_output=True, env=environment)
        summary = json.loads((out / "summary.json").read_text())
    training_s = sum(seconds for stage, seconds in summary["seconds"].items() if stage not in PAUSES)
    return float(summary["tokens"]) / training_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="folder with the earlier commit")
    parser.add_argument("--preset", default="wiki")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sides = {"before": options.before, "after": Path(__file__).resolve().parents[1]}
    speeds: dict[str, list[float]] = {"before": [], "after": []}
    with tempfile.TemporaryDirectory() as folder:
        text = write_text(Path(folder) / "corpus.txt", 2_000_000)
        for _ in range(options.rounds):
            for side, source in sides.items():
                speeds[side].append(tokens_per_second(source, text, options.preset, options.steps))
            print(", ".join(f"{side} {values[-1]:,.0f} tokens/s" for side, values in speeds.items()), flush=True)
    ratio = statistics.median(after / before for before, after in zip(*speeds.values(), strict=True))
    passed = ratio >= TARGET
    print(json.dumps({"preset": options.preset, **speeds, "ratio": ratio, "target": TARGET, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
