"""Peak memory and speed of training within `training.memory_budget`, against training without one.

Teaches: whether a budget holds, from the first step on, and what it costs. Each case is a whole command (`headrace
train`, choice, evaluation and a checkpoint included) in a process of its own that has chosen nothing before. A budget
that is refused is raised to the one that the refusal names, and that one must hold. The speed of the first case is
compared with the same command without a budget; sides alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from corpora import write_text

TARGET_SPEED = 0.85
CASES = {
    "wiki gpt2 muon": (850, "--preset wiki model.arch=gpt2"),
    "wiki gpt2 adamw": (850, "--preset wiki model.arch=gpt2 training.optimizer=adamw"),
    "wiki muon": (850, "--preset wiki"),
    "wiki adamw": (850, "--preset wiki training.optimizer=adamw"),
    "wiki, roomy": (1200, "--preset wiki"),
    "wiki, torch": (850, "--preset wiki training.engine=torch"),
    "prototype": (300, "--preset prototype"),
}
"""Budgets in MB and what is trained, by name. That of `prototype` is below what imports take."""
REFUSED = re.compile(r"Use training\.memory_budget=(\d+)MB")


class Bench:
    """Runs of `headrace train` on one text, in one folder."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps, self._number = folder, steps, 0
        self._text = write_text(folder / "text.txt", 4_000_000)

    def run(self, options: str, budget_mb: int | None) -> dict[str, float]:
        """Train, with the budget that a refusal names if this one is refused; return budget, peak and speed."""
        self._number += 1
        out = self._folder / f"run-{self._number}"
        command = [sys.executable, "-m", "headrace", "train", str(self._text), *options.split(), "--json"]
        command += [f"training.max_steps={self._steps}", "training.evaluation_tokens=4096", f"run.out={out}"]
        command += [f"data.cache_dir={self._folder / 'cache'}-{options.split()[1]}"]
        command += [f"training.memory_budget={budget_mb}MB"] if budget_mb else []
        fresh = os.environ | {"HEADRACE_CACHE": str(self._folder / f"user-{self._number}")}
        done = subprocess.run(command, capture_output=True, text=True, env=fresh)
        refused = REFUSED.search(done.stderr)
        if done.returncode and refused:
            print(f"  {budget_mb} MB are refused: {refused[1]} MB are needed", flush=True)
            return self.run(options, int(refused[1]))
        if done.returncode:
            raise SystemExit(done.stderr)
        result = json.loads(done.stdout.splitlines()[-1])
        working = sum(result["seconds"][stage] for stage in ("data wait", "forward", "backward", "optimizer"))
        chosen = json.loads((out / "environment.json").read_text())["execution"]
        peak_mb, speed = result["peak_memory_bytes"] / 1e6, result["tokens"] / working
        print(
            f"  {f'{budget_mb} MB' if budget_mb else 'no budget'}: peak {peak_mb:.0f} MB, {speed:,.0f} tok/s,"
            f" {chosen['engine']}, {chosen['precision']}, micro-batch {chosen['micro_batch_size']},"
            f" {chosen['threads']} threads, gradient checkpointing {chosen['gradient_checkpointing']}",
            flush=True,
        )
        return {"budget_mb": budget_mb or 0, "peak_mb": peak_mb, "speed": speed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1, help="of the comparison of speeds")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", choices=sorted(CASES), help="one case, and no comparison of speeds")
    options = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    ratios: list[float] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as folder:
        bench = Bench(Path(folder), options.steps)
        for name, (budget_mb, given) in CASES.items():
            if options.only in (None, name):
                print(name, flush=True)
                rows[name] = bench.run(given, budget_mb)
        for _ in range(0 if options.only else options.repeats):
            print("speed", flush=True)
            budget_mb, given = next(iter(CASES.values()))
            free, bound = bench.run(given, None), bench.run(given, budget_mb)
            ratios.append(bound["speed"] / free["speed"])
    passed = all(row["peak_mb"] <= row["budget_mb"] for row in rows.values())
    speed = statistics.median(ratios) if ratios else None
    passed = passed and (speed is None or speed >= TARGET_SPEED)
    result = {"benchmark": "training_memory", "cases": rows, "speed_ratio": speed, "target": TARGET_SPEED}
    print(json.dumps({**result, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
