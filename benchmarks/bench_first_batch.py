"""How long until the first batch of a corpus that would take a minute to tokenise.

Teaches: whether training starts at once. Every case runs in a process of its own; imports are not counted. Cases: raw
text with a tokenizer given and no cache; the same with `bpe:16000` to be trained first; and with a finished cache.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from corpora import write_text

import headrace as hr
from headrace.data.cache.open import open_or_create
from headrace.data.corpus.sources import as_sources

TARGETS = {"raw": 2.0, "cache": 0.5, "training_adds": 5.0}


def first_batch(source: str, tokenizer: str, cache_dir: str) -> None:
    """Print, in a child process, the seconds from here to the first batch."""
    began = time.perf_counter()
    loader = hr.Loader(
        source, batch_size=32, sequence_length=256, tokenizer=tokenizer, cache_dir=cache_dir if cache_dir else None
    )
    next(loader)
    print(time.perf_counter() - began, flush=True)
    loader.close()


def timed(source: Path, tokenizer: str, cache_dir: Path | str) -> float:
    command = [sys.executable, __file__, "--child", str(source), tokenizer, str(cache_dir)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", default=".", help="where to put the corpus (removed afterwards)")
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        first_batch(*options.child)
        return 0
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.folder) as folder:
        root = Path(folder)
        text = write_text(root / "corpus.txt", int(options.gigabytes * 2**30))
        trained = open_or_create(as_sources([text]), "bpe:16000", root / "tokenizer").path / "tokenizer.json"
        times: dict[str, list[float]] = {"raw": [], "trained": []}
        for _ in range(options.repeats):
            for case, tokenizer in (("raw", str(trained)), ("trained", "bpe:16000")):
                times[case].append(timed(text, tokenizer, root / "streamed"))
                shutil.rmtree(root / "streamed")
        began = time.perf_counter()
        hr.prepare([text], tokenizer=str(trained), out=root / "cache")
        prepare_s = time.perf_counter() - began
        times["cache"] = [timed(root / "cache", "-", "") for _ in range(options.repeats)]
        times["again"] = [timed(text, str(trained), root / "cache") for _ in range(options.repeats)]
    medians = {case: round(statistics.median(values), 3) for case, values in times.items()}
    medians["training_adds"] = round(medians["trained"] - medians["raw"], 3)
    medians["prepare"] = round(prepare_s, 1)
    for case, seconds in medians.items():
        print(f"{case:>14}: {seconds} s" + (f" (target {TARGETS[case]} s)" if case in TARGETS else ""))
    passed = all(medians[case] <= target for case, target in TARGETS.items())
    print(json.dumps({"benchmark": "first_batch", "seconds": medians, "targets": TARGETS, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
