"""What looking for duplicates costs, against tokenising the same text.

Teaches: how long the first batch waits with data.deduplicate (the survey: all text is read and hashed once), and what
the default, counting duplicates while tokenising, adds to `prepare`. All sides alternate in one run; the ratio is the
survey's speed over that of a whole `prepare`, both as medians.
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
from headrace.data.cache.cache import Cache
from headrace.data.prepare import as_selection, open_cache

TARGET = 1.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--document-bytes", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="lines of text instead of JSON lines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=".") as folder:
        root = Path(folder)
        file = _write_lines(root, options.megabytes * 10**6, options.document_bytes, options.plain)
        corpus = hr.Source(path=str(file), document="line")
        hr.prepare(corpus, tokenizer="bpe:16000", out=root / "tokenizer")
        tokenizer = str(root / "tokenizer" / "tokenizer.json")
        speeds: dict[str, list[float]] = {"prepare": [], "without counting": [], "exact": [], "near": []}
        for _ in range(options.repeats):
            for side, measured in speeds.items():
                measured.append(file.stat().st_size / _seconds(side, corpus, tokenizer, root / "cache") / 1e6)
                print(f"{side}: {measured[-1]:.0f} MB/s", flush=True)
    middle = {side: statistics.median(measured) for side, measured in speeds.items()}
    ratio = middle["exact"] / middle["prepare"]
    result = {"benchmark": "duplicates", "ratio": ratio, "megabytes_per_second": middle, "target": TARGET}
    print(json.dumps({**result, "passed": ratio >= TARGET}))
    return 0 if ratio >= TARGET else 1


def _seconds(side: str, corpus: hr.Source, tokenizer: str, cache: Path) -> float:
    """Time one side: a whole `prepare`, or only the survey before it."""
    began = time.perf_counter()
    if side == "prepare":
        hr.prepare(corpus, tokenizer, cache)
    elif side == "without counting":
        text, Cache.text = Cache.__dict__.get("text"), property(lambda _: None, lambda *_: None)  # type: ignore[assignment]
        try:
            hr.prepare(corpus, tokenizer, cache)
        finally:
            del Cache.text
            assert text is None
    else:
        open_cache(corpus, tokenizer, cache, selection=as_selection(side, 0.8))  # type: ignore[arg-type]
    elapsed = time.perf_counter() - began
    shutil.rmtree(cache)
    return elapsed


def _write_lines(root: Path, num_bytes: int, document_bytes: int, is_plain: bool) -> Path:
    """Write documents of about this size as lines; every tenth repeats an earlier one."""
    text = write_text(root / "text.txt", num_bytes).read_text()
    documents = [text[start : start + document_bytes] for start in range(0, len(text), document_bytes)]
    (root / "text.txt").unlink()
    path = root / ("corpus.txt" if is_plain else "corpus.jsonl")
    with open(path, "w") as file:
        for number, document in enumerate(documents):
            repeated = documents[number // 2] if number % 10 == 9 else document
            file.write((repeated.replace("\n", " ") if is_plain else json.dumps({"text": repeated})) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
