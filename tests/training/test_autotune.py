"""The choice of an execution, from measurements whose results are known."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.errors import UsageError
from headrace.models.kernels import SMALL_CHUNK_BYTES
from headrace.training.autotune import choose_execution
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.ways.comparing import answer, compare
from headrace.training.ways.memory import SPARE_BYTES, pass_bytes
from tests.training.tiny import random_batch, small


def test_the_fastest_choice_wins_by_a_margin() -> None:
    seconds = {1: [9.0, 3.0], 2: [2.0], 4: [1.99], 8: [1.0, 8.0]}

    def measure(size: int) -> float:
        times = seconds[size]
        return times[0] if len(times) == 1 else times.pop(0)

    assert answer(compare([1, 2, 4], 2), measure) == 2, "a hundredth is noise"
    seconds[8] = [1.0, 8.0, 1.0]
    assert answer(compare([2, 4, 8], 2), measure) == 8, "one slow round is noise too"


MB = 1_000_000
TOO_LITTLE_FOR_PRODUCTS = 0


def test_a_memory_budget_chooses_smaller_micro_batches_then_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has 1,000 MB, 80 are to come, and 32 are spared."""
    measured: list[Execution] = []

    def taken(_model: object, _length: int, execution: Execution) -> int:
        return execution.micro_batch_size * (25 if execution.gradient_checkpointing else 100) * MB

    def time(_replica: Replica, _batch: Batch, execution: Execution, _presentation: object) -> float:
        measured.append(execution)
        return 1.0 / execution.micro_batch_size

    monkeypatch.setattr("headrace.training.autotune._time", time)
    monkeypatch.setattr("headrace.training.autotune.memory_bytes", lambda: 1000 * MB)
    monkeypatch.setattr("headrace.training.ways.memory.pass_bytes", taken)
    given: dict[str, Any] = {"batch_size": 8, "max_length": 256, "precision": "float32", "engine": "torch"}

    def choose(limit: int | None) -> Execution:
        measured.clear()
        training = TrainingConfig(**given, memory_budget=f"{limit}MB" if limit else None)  # type: ignore[arg-type]
        budget = limit * MB if limit else None
        return choose_execution(small(), random_batch(), training, memory_limit=budget, reserve=80 * MB)

    assert choose(None).micro_batch_size == 8
    within = choose(1600)
    assert (within.micro_batch_size, within.gradient_checkpointing) == (4, False)
    assert max(way.micro_batch_size for way in measured) == 4, "what would break the limit is not even tried"
    tight = choose(1145)
    assert (tight.micro_batch_size, tight.gradient_checkpointing) == (1, True)
    assert all(way.gradient_checkpointing and way.micro_batch_size == 1 for way in measured)
    with pytest.raises(UsageError, match=r"memory_budget=1050MB cannot be kept.*Use training.memory_budget=1150MB"):
        choose(1050)
    assert not measured, "refused before anything is computed"
    assert choose(1140).gradient_checkpointing, "the budget that the refusal names can be kept"


def test_the_smaller_optimizer_is_named_where_a_budget_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.training.autotune.memory_bytes", lambda: 1000 * MB)
    training = TrainingConfig(optimizer="adamw", memory_budget="900MB", batch_size=8)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"training\.optimizer=muon, whose state is .*MB smaller.*--force"):
        choose_execution(small(), random_batch(), training, memory_limit=900 * MB)
    with pytest.raises(UsageError) as refusal:
        choose_execution(small(), random_batch(), TrainingConfig(batch_size=8), memory_limit=900 * MB)
    assert "900MB of memory are not enough" in str(refusal.value)
    assert "training.optimizer" not in str(refusal.value) and "memory_budget=" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "memory_limit", "is_tried"),
    [
        ({}, None, True),
        ({}, 1 << 30, True),
        ({"engine": "torch", "precision": "float32", "matmul": "default"}, TOO_LITTLE_FOR_PRODUCTS, False),
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
    if memory_limit == TOO_LITTLE_FOR_PRODUCTS:
        products = Execution(1, attention="products", head_chunk_bytes=SMALL_CHUNK_BYTES)
        memory_limit = pass_bytes(small().config, 256, products) + SPARE_BYTES - 1
    chosen = choose_execution(small(), random_batch(), training, memory_limit=memory_limit)
    assert chosen.attention == ("products" if is_tried else "fused")
