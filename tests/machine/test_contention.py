"""What other programs take of the processor is noticed, and measurements are made in spite of it. Nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.data.batch import Batch
from headrace.machine import contention, peak
from headrace.machine.contention import ProcessorTime, is_disturbed
from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.run.config import Layers
from headrace.run.pretraining import Pretraining
from headrace.training import autotune as choosing
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from tests.conftest import make_text
from tests.run import tiny_run

THEN = ProcessorTime(own_s=10.0, delayed_s=1.0, busy_s=100.0, stolen_s=5.0)


@pytest.mark.parametrize(
    ("own_s", "delayed_s", "busy_s", "stolen_s", "percent"),
    [
        (2.0, 0.0, 2.0, 0.0, 0.0),  # alone
        (2.0, 0.0, 4.0, 0.0, 0.0),  # others on other cores
        (2.0, 2.0, 4.0, 0.0, 50.0),  # others on its core
        (2.0, 6.0, 2.0, 0.0, 0.0),  # its own threads in each other's way
        (2.0, 0.0, 2.0, 2.0, 50.0),  # another virtual machine
        (2.0, None, 4.0, 0.0, None),  # not Linux
    ],
)
def test_what_others_take(
    own_s: float, delayed_s: float | None, busy_s: float, stolen_s: float, percent: float | None
) -> None:
    delay = None if delayed_s is None else 1.0 + delayed_s
    now = ProcessorTime(10.0 + own_s, delay, 100.0 + busy_s, 5.0 + stolen_s)
    assert now.taken_percent_since(THEN) == (None if percent is None else pytest.approx(percent))
    assert is_disturbed(percent) == (percent == 50.0)


def test_times_are_read_or_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = ProcessorTime.now()
    sum(range(200_000))
    now = ProcessorTime.now()
    assert now.own_s > before.own_s
    assert now.busy_s >= before.busy_s > 0
    monkeypatch.setattr(contention, "_THREADS", tmp_path / "none")
    assert ProcessorTime.now().taken_percent_since(before) is None


def test_a_peak_is_measured_until_a_product_had_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten products nine are slowed by others; the rate is that of the tenth."""
    calls = 0

    def timed(_product: Callable[..., Tensor], left: Tensor, _right: Tensor) -> tuple[float, bool]:
        nonlocal calls
        calls += 1
        is_clean = calls % 10 == 0
        return 2 * len(left) ** 3 / (4e11 if is_clean else 5e10), is_clean

    monkeypatch.setattr(peak, "_time", timed)
    monkeypatch.setattr(peak, "SIZES", (64,))
    monkeypatch.setattr(peak, "PATIENCE", 1e12)
    assert peak.measure_peak_flops(seconds=1e-6) == pytest.approx(4e11)
    monkeypatch.setattr(peak, "PATIENCE", 1.0)
    monkeypatch.setattr(peak, "_time", lambda *_: (1.0, False))
    assert peak.measure_peak_flops(seconds=1e-6) > 0, "patience ends"


def chosen_threads(monkeypatch: pytest.MonkeyPatch, taken_percent: float | None, threads: int) -> int:
    """What is chosen of two threads where one is nine times as fast."""
    model = ModelConfig(d_model=32, num_layers=1, num_heads=2, vocab_size=64, context=16)
    training = TrainingConfig(
        batch_size=4, max_length=16, precision="float32", matmul="default", engine="torch", threads=threads
    )
    tokens = np.zeros((4, 17), dtype=np.int64)

    def timed(_replica: Any, _batch: Any, execution: Execution, _presentation: Any) -> float:
        return 9.0 if execution.threads == 2 else 1.0

    monkeypatch.setattr(choosing, "_time", timed)
    monkeypatch.setattr(ProcessorTime, "taken_percent_since", lambda *_: taken_percent)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return choosing.choose_execution(build(model), Batch(0, tokens[:, :-1], tokens[:, 1:]), training).threads


def test_threads_are_chosen_by_measurement_where_others_use_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_threads(monkeypatch, taken_percent=60.0, threads=0) == 1
    assert chosen_threads(monkeypatch, taken_percent=60.0, threads=2) == 2, "as it was asked for"
    assert chosen_threads(monkeypatch, taken_percent=1.0, threads=0) == 2, "noise is not measured where all is quiet"
    assert chosen_threads(monkeypatch, taken_percent=None, threads=0) == 2


def test_a_run_knows_what_others_took(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(make_text(20_000))
    monkeypatch.setattr(ProcessorTime, "taken_percent_since", lambda *_: 61.0)
    monkeypatch.setattr("headrace.run.environment.measure_peak_flops", lambda *_: 1e9)
    layers = Layers()
    layers.add(tiny_run.settings(tmp_path / "corpus.txt", tmp_path / "run"), "the test")
    with Pretraining(layers.build()) as training:
        list(training.steps())
    assert training.run.as_json()["processor_taken_percent"] == 61.0
    from headrace.report.read import read_run

    assert read_run(tmp_path / "run").bottleneck.name == "processor taken by others"
