"""`headrace tune --apply` on a deliberately bad configuration: is the result fast, and do its gains come again?

Teaches: whether advice by short trials can be trusted. The bad configuration computes the whole batch at once on one
thread, with one worker and no prefetching. Its tuned form takes turns with the best that is known for the shape: what
training chooses when everything is left to it. Then the tuning is run once more, and each gain must be within the
spread that was printed the first time (those that were measured on top of the same changes).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from corpora import write_text

from headrace.cli.commands.tune import show_tuning
from headrace.instruments.ladder import Tuning
from headrace.instruments.trial import Trial
from headrace.jobs.tune import tune
from headrace.run.config import Config, Layers
from headrace.run.presets import PRESETS

LEAST_SPEED, MOST_SECONDS = 0.9, 180.0
BAD = {"training.threads": 1, "data.num_workers": 1, "data.prefetch_batches": 0}


def make_config(preset: str, text: Path, changes: dict[str, Any]) -> Config:
    layers = Layers()
    layers.add(PRESETS[preset](), preset)
    own = {"data.sources": [str(text)], "data.cache_dir": str(text.parent / "cache"), "training.precision": "float32"}
    layers.add({**own, **changes}, "benchmark")
    return layers.build()


def compare(tuned: Config, default: Config, num_pairs: int) -> float:
    """Return the speed of the tuned configuration relative to the best one known."""
    with Trial(tuned) as mine, Trial(default, is_chosen=True) as best:
        ratios = []
        for _ in range(num_pairs):
            known, reached = best.measure(), mine.measure()
            ratios.append(known.seconds_per_token / reached.seconds_per_token)
    return statistics.median(ratios)


def again(first: Tuning, second: Tuning) -> list[dict[str, Any]]:
    """Return the gains of both tunings, as far as they were measured on top of the same changes."""
    rows = []
    taken: list[set[str]] = [set(), set()]
    for one in first.findings:
        other = next((f for f in second.findings if f.option == one.option), None)
        if one.gain and other and other.gain and taken[0] == taken[1]:
            off = abs(one.gain.percent - other.gain.percent)
            row = {"option": one.option.title, "first": one.gain.percent, "second": other.gain.percent}
            rows.append({**row, "spread": one.gain.spread_percent, "is_within": off <= one.gain.spread_percent})
        for seen, finding in zip(taken, (one, other), strict=True):
            if finding and finding.is_taken:
                seen.add(finding.option.title)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="development", choices=sorted(PRESETS))
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as folder:
        text = write_text(Path(folder) / "text.txt", 4_000_000)
        default = make_config(options.preset, text, {})
        bad = make_config(options.preset, text, {**BAD, "training.micro_batch_size": default.training.batch_size})
        tunings = [tune(bad), tune(bad)]
        for tuning in tunings:
            show_tuning(tuning)
        default.model = tunings[0].tuned.model  # the same, complete
        speed = compare(tunings[0].tuned, default, options.pairs)
    rows = again(*tunings)
    for row in rows:
        print(f"{row['option']:60s} {row['first']:+7.1f}% ± {row['spread']:4.1f}, again {row['second']:+7.1f}%"
              f"{'' if row['is_within'] else '  NOT within'}")  # fmt: skip
    seconds = max(tuning.seconds for tuning in tunings)
    print(f"tuned: {speed:.3f} of the best speed known, found in {seconds:.0f} s")
    passed = speed >= LEAST_SPEED and seconds < MOST_SECONDS and all(row["is_within"] for row in rows)
    result = {"benchmark": "advice", "speed_ratio": speed, "seconds": seconds, "num_gains": len(rows)}
    result |= {"num_within": sum(row["is_within"] for row in rows), "target": LEAST_SPEED, "passed": passed}
    print(json.dumps(result))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
