"""Peak anonymous memory while a hard corpus is prepared, and while it is served from raw text, within a budget.

Teaches: whether memory is bounded in bytes whatever the documents are. The corpus has one document of 200 MB, 10,000
tiny files, and plain text for the rest. What counts is memory above what the process had after its imports.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from corpora import real_lines, write_text

import headrace as hr

BUDGET = 256 << 20


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise SystemExit("this benchmark needs Linux: /proc/self/status has no RssAnon")


class Watch(threading.Thread):
    """A thread that samples the memory of this process every two milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.baseline = self.peak = anonymous_bytes()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.002):
            self.peak = max(self.peak, anonymous_bytes())


def child(case: str, corpus: str, tokenizer: str, cache: str) -> None:
    watch = Watch()
    watch.start()
    if case == "prepare":
        hr.prepare([corpus], tokenizer=tokenizer, out=cache, memory_budget=BUDGET)
    else:
        with hr.Loader(
            corpus, batch_size=64, sequence_length=256, tokenizer=tokenizer, cache_dir=cache, memory_budget=BUDGET
        ) as loader:
            for _ in range(12_000):  # some 200 M tokens: most of the corpus
                next(loader)
    watch.done.set()
    print(json.dumps({"baseline": watch.baseline, "above": watch.peak - watch.baseline}))


def make_corpus(root: Path, nbytes: int) -> None:
    write_text(root / "a-huge-document.txt", 200_000_000, seed=1)
    lines = real_lines()
    for number in range(10_000):
        folder = root / "tiny" / f"{number % 100:02}"
        folder.mkdir(parents=True, exist_ok=True)
        start = number * 7 % (len(lines) - 20)
        (folder / f"{number}.txt").write_bytes(b"".join(lines[start : start + 20]))
    for number in range(4):
        write_text(root / f"part-{number}.txt", (nbytes - 200_000_000) // 4, seed=10 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", default=".", help="where to put the corpus (removed afterwards)")
    parser.add_argument("--child", nargs=4)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return 0
    limit = int(BUDGET * 1.1)
    results = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.folder) as folder:
        root = Path(folder)
        (root / "corpus").mkdir()
        make_corpus(root / "corpus", int(options.gigabytes * 2**30))
        hr.prepare([root / "corpus" / "tiny"], tokenizer="bpe:16000", out=root / "tokenizer")
        tokenizer = str(root / "tokenizer" / "tokenizer.json")
        for case in ("prepare", "serve"):
            command = [sys.executable, __file__, "--child", case, str(root / "corpus"), tokenizer, str(root / case)]
            began = time.perf_counter()
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results[case] = json.loads(output)["above"]
            print(
                f"{case}: peak {results[case] / 2**20:.0f} MiB above the imports (limit {limit / 2**20:.0f} MiB),"
                f" {time.perf_counter() - began:.1f} s"
            )
            shutil.rmtree(root / case)
    passed = all(peak <= limit for peak in results.values())
    print(json.dumps({"benchmark": "memory", "peak_bytes": results, "limit_bytes": limit, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
