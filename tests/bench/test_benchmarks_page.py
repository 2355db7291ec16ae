"""docs/benchmarks.md as it is generated: every row of headrace is judged in every column, and targets are compared."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "write_page.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_page", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(peer: str, **values: Any) -> dict[str, Any]:
    return {"peer": peer, "version": "1.0", "status": "ok", "message": "", **values}


def loaders() -> list[dict[str, Any]]:
    return [
        row("headrace-cache", tokens_per_second=2e9, first_batch_s=0.05, same_order_with_other_workers=True),
        row("headrace-text", tokens_per_second=1e7, first_batch_s=0.9, same_order_with_other_workers=True),
        row("other", tokens_per_second=5e7, first_batch_s=0.051, same_order_with_other_workers=False),
        row("broken", status="failed", message="OSError: gone"),
    ]


def test_every_row_is_judged_in_every_column_and_told_why(script: ModuleType) -> None:
    done = [row for row in loaders() if row["status"] == "ok"]
    cache, *others = script.worse_at("loaders", [*done, row("quick", first_batch_s=0.01)], script.LOADER_COLUMNS)
    assert cache.startswith("- headrace-cache, first batch s: 0.05; quick 0.01. Why: every shard")
    speed, first = others
    assert speed.startswith("- headrace-text, M tokens/s: 10.0; other 50.0. Why: it tokenises")
    assert first.startswith("- headrace-text, first batch s: 0.90; other 0.05, quick 0.01. Why: the first shuffle")
    ours, theirs = row("headrace", same_ids=False), row("other", same_ids=True)
    (unknown,) = script.worse_at("tokenize", [ours, theirs], [("same ids", "same_ids", 1, "", False)])
    assert unknown == "- headrace, same ids: **no**; other yes. Why: the reason is not known."


def test_the_page_has_targets_failures_and_the_commands(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = [row("headrace", tokens_per_second=1200), row("jax", tokens_per_second=1000)]
    tokenize = [row("headrace", megabytes_per_second=500), row("tiktoken", megabytes_per_second=9)]
    machine = {"processor": "CPU", "cores": 2, "memory_bytes": 2**34, "platform": "Linux", "python": "3.11"}
    for name, rows in {"loaders": loaders(), "train": train, "tokenize": tokenize}.items():
        result = {"benchmark": name, "command_options": {"num_steps": 2}, "results": {"x": rows}, "machine": machine}
        (tmp_path / f"{name}.txt").write_text("a table\n" + json.dumps(result))
    monkeypatch.setattr(sys, "argv", ["write_page.py", str(tmp_path), str(tmp_path / "page.md")])
    script.main()
    page = (tmp_path / "page.md").read_text()
    for line in (
        "    headrace bench loaders --num-steps 2",
        "- broken 1.0: failed: `OSError: gone`",
        "- headrace-cache: 40.00 x the best peer (other); target 20 x, reached.",
        "- headrace-text: 0.20 x the best peer (other); target 1 x, **not reached**: it tokenises while it serves; the"
        " peers' tokens were made before their clocks started.",
        "- headrace: 1.20 x the best peer (jax); target 1.3 x, **not reached**: most of a step are the same matrix"
        " products on every side; docs/LOG.md has what was tried.",
        "headrace is worse at none of these here.",
    ):
        assert line in page.splitlines()
