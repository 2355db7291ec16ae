"""What a run measures about its machine."""

from __future__ import annotations

import pytest
import torch

from headrace.machine.measure import torch_threads
from headrace.run import environment
from headrace.training.execution import Execution


def test_rates_are_those_of_the_threads_of_an_execution(monkeypatch: pytest.MonkeyPatch) -> None:
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
