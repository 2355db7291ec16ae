"""How fast thousands of small files become a cache, against one file of the same bytes; and text without spaces.

Teaches: what a file costs beside its bytes (opening, checking, naming it in the cache), and whether looking for a place
to cut costs more where a text has no spaces. Both sides alternate in one run; the results are median ratios.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from corpora import write_text

import headrace as hr

TARGET = 0.5
FILE_BYTES = 5000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as folder:
        root = Path(folder)
        data = write_text(root / "one.txt", options.files * FILE_BYTES).read_bytes()[: options.files * FILE_BYTES]
        (root / "one.txt").write_bytes(data)
        names = []
        for number in range(options.files):
            path = root / "many" / f"{number % 50:02}" / f"{number:05}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[number * FILE_BYTES : (number + 1) * FILE_BYTES])
            names.append(path)
        (root / "no_spaces.txt").write_text("語" * (len(data) // 3))
        hr.prepare([root / "one.txt"], tokenizer="bpe:16000", out=root / "tokenizer")
        sides = {"one": root / "one.txt", "folder": root / "many", "listed": names, "no_spaces": root / "no_spaces.txt"}
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(options.repeats):
            for name, paths in sides.items():
                began = time.perf_counter()
                hr.prepare(paths, tokenizer=str(root / "tokenizer" / "tokenizer.json"), out=root / "cache")
                speeds[name].append(len(data) / (time.perf_counter() - began) / 1e6)
                shutil.rmtree(root / "cache")
            print(f"run {number}: " + ", ".join(f"{name} {speeds[name][-1]:.0f} MB/s" for name in sides))
    ratios = {
        name: statistics.median(a / b for a, b in zip(speeds[name], speeds["one"], strict=True))
        for name in ("folder", "listed", "no_spaces")
    }
    passed = min(ratios.values()) >= TARGET
    print(json.dumps({"benchmark": "small_files", "ratios": ratios, "target": TARGET, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
