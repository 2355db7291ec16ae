"""Peak memory and speed of training within `training.memory_budget`, against training without one.

Teaches: what a budget costs. The `wiki` shape with `arch: gpt2` in float32, as people run it (`headrace train`,
evaluation and a checkpoint included); sides alternate, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from corpora import write_text

BUDGET_MB = 850
TARGET_SPEED = 0.85


def run(text: Path, folder: Path, steps: int, budget: str) -> dict[str, float]:
    command = [sys.executable, "-m", "headrace", "train", "--preset", "wiki", str(text), "--json"]
    command += [
        f"training.max_steps={steps}",
        "training.precision=float32",
        "model.arch=gpt2",
        "training.evaluation_tokens=4096",
    ]
    command += [f"run.out={folder}", f"data.cache_dir={text.parent / 'cache'}"]
    command += [f"training.memory_budget={budget}"] if budget else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    result = json.loads(done.stdout.splitlines()[-1])
    working = sum(result["seconds"][stage] for stage in ("data wait", "forward", "backward", "optimizer"))
    chosen = json.loads((folder / "environment.json").read_text())["execution"]
    print(
        f"{budget or 'no budget'}: {result['tokens'] / working:,.0f} tok/s, {result['peak_memory_bytes'] / 1e6:.0f} MB,"
        f" micro-batch {chosen['micro_batch_size']}, gradient checkpointing {chosen['gradient_checkpointing']}",
        flush=True,
    )
    return {"speed": result["tokens"] / working, "peak_mb": result["peak_memory_bytes"] / 1e6}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    ratios, peaks = [], []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as folder:
        text = write_text(Path(folder) / "text.txt", 4_000_000)
        for repeat in range(options.repeats):
            free = run(text, Path(folder) / f"free-{repeat}", options.steps, "")
            bound = run(text, Path(folder) / f"bound-{repeat}", options.steps, f"{BUDGET_MB}MB")
            ratios.append(bound["speed"] / free["speed"])
            peaks.append(bound["peak_mb"])
    speed, peak = statistics.median(ratios), max(peaks)
    passed = peak <= BUDGET_MB and speed >= TARGET_SPEED
    result = {"benchmark": "training_memory", "peak_mb": peak, "budget_mb": BUDGET_MB, "speed_ratio": speed}
    print(json.dumps({**result, "target": TARGET_SPEED, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
