"""Choosing an execution on the micro-batches of training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from headrace.distributed.replicas import Replica
from headrace.training import choosing
from headrace.training.autotune import Search
from headrace.training.choosing import TrainingChoice
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.step import StepSeconds, accumulate
from tests.training.tiny import random_batch, small

Accumulated = tuple[float, StepSeconds]
TRAINING = TrainingConfig(engine="torch", batch_size=8, max_length=256, threads=1, matmul="default", attention="fused")
MODEL = small().config


@pytest.fixture
def fast_when_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Execution, range]]]:
    """Let bfloat16 take half the time, and micro-batches of two the least; list what is computed."""
    computed: list[tuple[Execution, range]] = []

    def fake(
        _replica: Replica, _batch: object, way: Execution, _scale: float, rows: range, _presentation: object
    ) -> tuple[float, StepSeconds]:
        computed.append((way, rows))
        seconds = (1 + abs(way.micro_batch_size - 2)) * (1 if way.precision == "bfloat16" else 2)
        return 0.25 * len(rows), StepSeconds(0.0, float(seconds * len(rows)))

    monkeypatch.setattr(choosing, "accumulate", fake)
    yield computed


def steps_until_settled(choice: TrainingChoice) -> int:
    for number in range(1, 100):
        loss, _ = choice.accumulate(Replica(small()), random_batch(), 1.0)
        assert loss == 0.25 * 8, "every row counts once"
        assert sum(piece.rows for piece in choice.pieces) == 8
        if choice.is_settled:
            return number
    raise AssertionError("never settled")


def test_steps_of_training_are_the_measurements(fast_when_small: list[tuple[Execution, range]]) -> None:
    choice = TrainingChoice(Search(MODEL, TRAINING))
    assert not choice.is_settled
    steps = steps_until_settled(choice)
    assert (choice.best.micro_batch_size, choice.best.precision) == (2, "bfloat16")
    assert choice.seconds_per_sequence == 1.0
    assert len(fast_when_small) >= steps
    whole = [rows for way, rows in fast_when_small if way.micro_batch_size == 8]
    assert whole and all(len(rows) == 8 for rows in whole), "what needs the whole batch waits for the next step"


def test_what_is_far_slower_is_not_measured_again(fast_when_small: list[tuple[Execution, range]]) -> None:
    steps_until_settled(TrainingChoice(Search(MODEL, TRAINING)))
    assert sum(way.precision == "float32" for way, _ in fast_when_small) <= 2


def test_a_choice_can_end_early_with_the_best_so_far(fast_when_small: list[tuple[Execution, range]]) -> None:
    choice = TrainingChoice(Search(MODEL, TRAINING))
    for _ in range(4):
        choice.accumulate(Replica(small()), random_batch(), 1.0)
    choice.settle()
    assert choice.is_settled and not choice.is_complete
    assert choice.best.precision == "bfloat16", "as far as it was measured"


def test_nothing_is_chosen_where_everything_is_given() -> None:
    given = TRAINING.model_copy(update={"micro_batch_size": 4, "precision": "float32"})
    choice = TrainingChoice(Search(MODEL, given))
    assert choice.is_settled
    assert choice.best == Execution(4, threads=torch.get_num_threads())


def test_a_disturbed_choice_is_not_complete(
    fast_when_small: list[tuple[Execution, range]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing.ProcessorTime, "taken_percent_since", lambda *_: 50.0)
    choice = TrainingChoice(Search(MODEL, TRAINING))
    steps_until_settled(choice)
    assert not choice.is_complete


def test_gradients_are_those_of_a_plain_step() -> None:
    batch, network = random_batch(), small()
    training = TRAINING.model_copy(update={"precision": "float32"})
    choice = TrainingChoice(Search(MODEL, training))
    loss, _ = choice.accumulate(Replica(network), batch, 1 / batch.num_tokens)
    mixed = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad(set_to_none=True)
    plain_loss, _ = accumulate(Replica(network), batch, Execution(8))
    assert loss == pytest.approx(plain_loss, rel=1e-6)
    for parameter, gradient in zip(network.parameters(), mixed, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
