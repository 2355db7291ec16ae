"""The ways to compute a step that are tried."""

from __future__ import annotations

import pytest

from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.ways.alternatives import native_ways


@pytest.mark.parametrize("length", [64, 1024, 1500, 4096])
def test_native_steps_are_tried_with_a_sequence_for_every_thread(length: int) -> None:
    ways = native_ways(Execution(1, threads=3), TrainingConfig(max_length=length), num_rows=64)
    assert all(way.micro_batch_size >= 3 for way in ways)
