"""docs/results.md as it is generated: measured figures beside reported ones, misses and failures told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FIGURES = {"tokens_per_second": 1000.0, "percent_of_peak": 50.0, "peak_memory_bytes": 5e8, "data_wait_percent": 0.01}


def entry(**result: Any) -> dict[str, Any]:
    whole = {**FIGURES, "first_sample": "x", "last_sample": "y", **result}
    return {
        "command": "headrace train /tmp/t.txt --out /tmp/r",
        "seconds": 9.0,
        "user_s": 1.0,
        "system_s": 1.0,
        "result": whole,
    }


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("results_page", None)
    import results_page  # type: ignore[import-not-found]

    way = {"processes": 1, "threads": 2, "speedup": 1.83}
    return {
        "machine": entry(hardware={"processor": "a processor", "cores": 2}),
        "runs": {run: entry() for _, run, _, _ in results_page.SPEEDS},
        "presets": {"demo": entry(parameters=1_000_000)},
        "characters": entry(first_loss=4.2, train_loss=1.9, cpu_cores=1.9),
        "prefetching": {"599 sequences, 0": entry()},
        "scale": entry(measured=[way]),
        "loaders": entry(results={"256": [{"peer": "p", "status": "missing"}]}),
        "tokenize": entry(results={"16000": [{"peer": "p", "status": "ok", "megabytes_per_second": 5.0}]}),
    }


def test_figures_stand_beside_what_was_reported(results: dict[str, Any]) -> None:
    from results_page import page

    text = page(results)
    assert "This machine: a processor, 2 cores." in text
    assert "| 3 layers x 256, vocabulary 16,000, 32 x 128 | 500 (promised) | 1,000 | 2.0 x | 50 | 500 |" in text
    assert "| speedup | 1.9 | 1.83 |" in text
    assert "    headrace train t.txt\n" in text
    assert "/tmp" not in text


def test_misses_and_failures_are_told(results: dict[str, Any]) -> None:
    from results_page import page

    results["runs"]["production-gpt2"] = entry(tokens_per_second=400.0)
    results["runs"]["prototype-gpt2"] = {"command": "headrace train x", "seconds": 1.0, "error": ["no memory"]}
    text = page(results)
    assert "**not matched** (0.40 x)" in text
    assert "**not matched**: the command failed" in text
    assert "| p | 256 | missing | missing |" in text


def test_without_measurements_nothing_is_claimed(results: dict[str, Any]) -> None:
    from results_page import page

    text = page({})
    assert "Not measured yet: run `make results`" in text
    assert "| 54-56 | not measured yet |" in text
    assert "## Prefetching by size of the corpus" in text
