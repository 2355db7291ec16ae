"""The choice of an execution, from measurements whose results are known."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.errors import TrainingError
from headrace.training.autotune import choose_execution
from headrace.training.comparing import fastest
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from tests.training.tiny import random_batch, small


def test_the_fastest_choice_wins_by_a_margin() -> None:
    seconds = {1: [9.0, 3.0], 2: [2.0], 4: [1.99], 8: [1.0, 8.0]}

    def measure(size: int) -> float:
        times = seconds[size]
        return times[0] if len(times) == 1 else times.pop(0)

    assert fastest([1, 2, 4], measure, 2) == 2, "a hundredth is noise"
    seconds[8] = [1.0, 8.0, 1.0]
    assert fastest([2, 4, 8], measure, 2) == 8, "one slow round is noise too"


def test_a_memory_budget_chooses_smaller_micro_batches_then_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"bytes": 0}
    per_sequence = 100

    def time(_replica: Replica, _batch: Batch, execution: Execution) -> float:
        size = execution.micro_batch_size * (per_sequence // 4 if execution.gradient_checkpointing else per_sequence)
        used["bytes"] = size
        return 1.0 / execution.micro_batch_size

    monkeypatch.setattr("headrace.training.autotune._time", time)
    monkeypatch.setattr("headrace.training.autotune.memory_bytes", lambda: 1000 + used["bytes"])
    training = TrainingConfig(batch_size=8, max_length=256, precision="float32")
    assert choose_execution(small(), random_batch(), training).micro_batch_size == 8
    within = choose_execution(small(), random_batch(), training, memory_limit=1600, reserve=80)
    assert (within.micro_batch_size, within.gradient_checkpointing) == (4, False)
    tight = choose_execution(small(), random_batch(), training, memory_limit=1130, reserve=80)
    assert (tight.micro_batch_size, tight.gradient_checkpointing) == (1, True)
    with pytest.raises(TrainingError, match="memory_budget"):
        choose_execution(small(), random_batch(), training, memory_limit=1050, reserve=80)


@pytest.mark.parametrize(
    ("changes", "memory_limit", "is_tried"),
    [
        ({}, None, True),
        ({}, 1 << 30, True),
        ({}, 1 << 16, False),
        ({"max_length": 4096}, None, False),
        ({"attention": "fused"}, None, False),
    ],
)
def test_batched_products_are_tried_where_they_fit(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], memory_limit: int | None, is_tried: bool
) -> None:
    """Only one thing is slow here, the fused kernel: so batched products are chosen wherever they are tried."""
    monkeypatch.setattr("headrace.training.autotune._time", lambda *given: 1.0 + (given[2].attention == "fused"))
    monkeypatch.setattr("headrace.training.autotune.memory_bytes", lambda: 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    training = TrainingConfig(batch_size=8, **{"max_length": 256, **changes})
    chosen = choose_execution(small(), random_batch(), training, memory_limit=memory_limit)
    assert chosen.attention == ("products" if is_tried else "fused")
