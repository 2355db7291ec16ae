"""Memory stays within the budget for corpora that are made to break it. Slow; Linux only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEASURE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from bench_memory import Watch
import headrace as hr
import pyarrow.parquet
watch = Watch()
watch.start()
source, out, budget, packing = json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
if packing == "prepare":
    hr.prepare([source], tokenizer="byte", out=out, memory_budget=budget, num_workers=1)
else:
    with hr.Loader(out, 32, 128, packing=packing, memory_budget=budget) as loader:
        for _ in range(50):
            next(loader)
watch.done.set()
print(watch.peak - watch.baseline)
"""


def peak(source: dict[str, str], out: Path, budget: int, job: str) -> int:
    command = [sys.executable, "-c", MEASURE, str(BENCHMARKS), json.dumps(source), str(out), str(budget), job]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.soak
def test_millions_of_tiny_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"ab\n" * 12_000_000)
    source = {"path": str(tmp_path / "a.txt"), "document": "line"}
    assert peak(source, tmp_path / "cache", 96 << 20, "prepare") < 106 << 20
    assert peak(source, tmp_path / "cache", 256 << 20, "document") < 282 << 20
    assert peak(source, tmp_path / "cache", 96 << 20, "stream") < 106 << 20


@pytest.mark.soak
def test_a_parquet_file_of_huge_rows(tmp_path: Path) -> None:
    row = "the mill wheel turns " * 100_000
    table = pa.table({"text": [f"{n} {row}" for n in range(200)]})
    # A page of parquet can only be read whole: pages of a row each show what our own reading holds.
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, write_batch_size=1)
    assert peak({"path": str(tmp_path / "a.parquet")}, tmp_path / "cache", 96 << 20, "prepare") < 106 << 20
