"""What `tune`, `plan`, `scale` and `bench` print fits a terminal of 80 columns, and begins with the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.bench.peer import Result
from headrace.cli.commands.bench import LOADER_COLUMNS, show_results
from headrace.cli.commands.plan import show_plan
from headrace.cli.commands.scale import show_scaling
from headrace.cli.commands.tune import show_tuning
from headrace.instruments.prediction import predict_run
from headrace.instruments.scaling import Way
from headrace.run.remembered_scaling import Projected
from tests.cli.terminal import Attach
from tests.instruments.test_prediction import known_machine
from tests.instruments.test_prediction import tiny as tiny_plan
from tests.instruments.test_scaling import scaling
from tests.jobs.test_tune import BAD, tuned_by
from tests.jobs.test_tune import tiny as tiny_tuning

__all__ = ["known_machine"]


def test_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal_of: Attach) -> None:
    result = tuned_by(monkeypatch, tiny_tuning(tmp_path, **BAD), lambda config: 1.0 + config.training.threads)
    terminal = terminal_of(80, 60)
    show_tuning(result)
    assert terminal.longest_line() <= 80
    rows = terminal.all_rows()
    assert "tokens/s" in rows[0]
    assert any("training.gradient_checkpointing=True" in row for row in rows), "what can be typed is whole"


def test_plan(tmp_path: Path, terminal_of: Attach) -> None:
    plan = predict_run(tiny_plan(tmp_path))
    terminal = terminal_of(80, 60)
    show_plan(plan)
    assert terminal.longest_line() <= 80
    assert "tokens/s predicted" in terminal.all_rows()[0]
    assert "it fits" in terminal.all_rows()[0]


def test_bench(terminal_of: Attach) -> None:
    """Columns that do not fit go into a further table; no figure is cut."""
    values = {"tokens_per_second": 1_166.8e6, "headrace_is": 180.06, "cpu_s_per_million_tokens": 0.0015}
    values |= {"first_batch_s": 0.74, "data_wait_percent": 0.1, "peak_memory_bytes": 541e6, "prepare_s": 0.6}
    results = [Result(name, "2.13.0+cpu", values=values) for name in ("headrace-cache", "mosaicml-streaming")]
    terminal = terminal_of(80, 60)
    show_results("Loaders", results, LOADER_COLUMNS, "tokens_per_second")
    assert terminal.longest_line() <= 80
    text = "\n".join(terminal.all_rows())
    assert "…" not in text
    assert [row.split()[1:] for row in terminal.all_rows() if row.startswith("mosaicml")] == [
        ["2.13.0+cpu", "1,166.8", "180.06", "0.74", "0.1", "0.0015"],
        ["541", "0.6", "-", "-"],
    ]


def test_scale(terminal_of: Attach) -> None:
    result = scaling({Way(1, 1): 98_765.0, Way(1, 16): 654_321.0, Way(16, 1): 754_321.0, Way(4, 4): 1_654_321.0})
    result.projected = [Projected(1024, 1024, True, 12_345_678.0, 125.0, 12.2)]
    result.all_reduce_bytes_per_second = 1e9
    terminal = terminal_of(80, 60)
    show_scaling(result)
    assert terminal.longest_line() <= 80
    rows = terminal.all_rows()
    assert rows[0].startswith("best: 4 proc. x 4 threads")
    assert sum("projected" in row and "1,024 processes" in row for row in rows) == 1
    assert "may be as far off" not in "\n".join(rows)


def test_scale_doubts_a_projection_that_the_measurement_does_not_bear_out(terminal_of: Attach) -> None:
    result = scaling({Way(1, 1): 23_482.0, Way(1, 2): 36_682.0, Way(2, 1): 17_446.0})
    result.measured[2].speedup, result.measured[2].expected_speedup = 0.74, 1.69
    result.projected = [Projected(4, 32, False, 60_349.0, 2.57, 64.0)]
    terminal = terminal_of(80, 60)
    show_scaling(result)
    assert "2 processes reached 44% of the expected speed" in " ".join("\n".join(terminal.all_rows()).split())
