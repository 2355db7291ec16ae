"""What a run measures about its machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.machine import contention
from headrace.machine.measure import torch_threads
from headrace.run import environment
from headrace.training.execution import Execution


def test_rates_are_those_of_the_threads_of_an_execution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))  # the rates of other tests are not these
    seen = []

    def measured(*_: object) -> float:
        seen.append(torch.get_num_threads())
        return 1.0

    monkeypatch.setattr(environment, "measure_peak_flops", measured)
    monkeypatch.setattr(environment, "measure_memory_bandwidth", measured)
    with torch_threads(1):  # as rows that were computed last may have left it
        environment.measure_rates(Execution(1, threads=2))
        assert torch.get_num_threads() == 1
    assert seen == [2, 2]


@pytest.mark.parametrize(("taken_percent", "is_remembered"), [(60.0, False), (1.0, True), (None, True)])
def test_rates_that_others_disturbed_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, taken_percent: float | None, is_remembered: bool
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(environment, "is_disturbed", contention.is_disturbed)  # other tests remember them always
    monkeypatch.setattr(contention.ProcessorTime, "taken_percent_since", lambda *_: taken_percent)
    monkeypatch.setattr(environment, "measure_peak_flops", lambda *_: 1e11)
    monkeypatch.setattr(environment, "measure_memory_bandwidth", lambda: 1e10)
    execution = Execution(1, threads=1)
    rates = environment.measure_rates(execution)
    assert environment.known_rates(execution, None) == (rates if is_remembered else None)
