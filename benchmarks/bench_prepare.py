"""How fast raw files become a sealed, checksummed cache, against Hugging Face tokenizers alone on bytes in memory.

Teaches: whether reading, checking, writing and syncing keep up with the fastest tokenizer there is. Both sides use all
cores; they alternate in one run; the result is the median ratio.
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
from tokenizers import Tokenizer

import headrace as hr

TARGET = 12.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as folder:
        root = Path(folder)
        files = [write_text(root / f"part-{i}.txt", options.megabytes * 10**6 // 4, seed=i) for i in range(4)]
        total = sum(file.stat().st_size for file in files)
        hr.prepare([files[0]], tokenizer="bpe:16000", out=root / "tokenizer")
        tokenizer = root / "tokenizer" / "tokenizer.json"
        oracle = Tokenizer.from_file(str(tokenizer))
        text = files[0].read_text()[: 8 << 20]
        pieces = [text[i : i + 8192] for i in range(0, len(text), 8192)]
        ratios = []
        for number in range(options.repeats):
            began = time.perf_counter()
            hr.prepare(files, tokenizer=str(tokenizer), out=root / "cache")
            ours = total / (time.perf_counter() - began)
            shutil.rmtree(root / "cache")
            began = time.perf_counter()
            oracle.encode_batch_fast(pieces, add_special_tokens=False)
            theirs = len(text.encode()) / (time.perf_counter() - began)
            ratios.append(ours / theirs)
            print(
                f"run {number}: headrace {ours / 1e6:.0f} MB/s, tokenizers {theirs / 1e6:.1f} MB/s: {ratios[-1]:.1f} x"
            )
    ratio = statistics.median(ratios)
    print(
        json.dumps(
            {"benchmark": "prepare", "ratio": ratio, "ratios": ratios, "target": TARGET, "passed": ratio >= TARGET}
        )
    )
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
