"""Learning rates over a run, and its limits."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.loop import Loop
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.schedule import Limits, Position, learning_rate_factor
from headrace.training.showing.windows import BatchStream, DealtWindows
from headrace.training.step import TrainStep
from tests.training.tiny import Nothing, random_batch, small


def test_schedules() -> None:
    linear = TrainingConfig(schedule="linear", warmup=0.1, final_learning_rate=0.1)
    cosine = TrainingConfig(schedule="cosine", warmup=0.1, final_learning_rate=0.1)
    stable = TrainingConfig(schedule="wsd", warmup=0.1, decay=0.2, final_learning_rate=0.1)
    assert learning_rate_factor(linear, 0.55) == pytest.approx(0.55)
    assert learning_rate_factor(cosine, 0.55) == pytest.approx(0.55)
    assert learning_rate_factor(stable, 0.79) == 1
    assert learning_rate_factor(stable, 0.9) == pytest.approx(0.55)
    for config in (linear, cosine, stable):
        assert learning_rate_factor(config, 0.05) == pytest.approx(0.5)
        assert learning_rate_factor(config, 1.0) == pytest.approx(0.1)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_the_learning_rate_falls_to_what_is_asked(schedule: Any) -> None:
    """Only the first updates of a warm-up have a floor; `final_learning_rate` may be as small as nothing."""
    network = small()
    training = TrainingConfig(schedule=schedule, final_learning_rate=0.0, warmup=0.1, max_steps=1000)
    step = TrainStep(Replica(network), Optimizer(network, training), Execution(8), 1.0)
    loop = Loop(
        training,
        Limits(1000, None),
        DealtWindows(cast(BatchStream, _Endless())),
        step,
        Position(step=998),
        Nothing(),
        Nothing(),
    )
    rates = [info.learning_rate for info in loop.steps()]
    assert len(rates) == 2
    assert rates[-1] == training.learning_rate * learning_rate_factor(training, 0.999)
    assert 0 < rates[-1] < 0.003 * training.learning_rate
    assert learning_rate_factor(training, 0.0) == 0.01


class _Endless:
    def __next__(self) -> Batch:
        return random_batch()


def test_the_limit_that_comes_first_ends_the_run() -> None:
    limits = Limits(steps=100, seconds=50.0)
    assert limits.progress(10, 25.0) == 0.5
    assert limits.progress(80, 25.0) == 0.8
    assert limits.is_over(100, 1.0)
    assert limits.is_over(1, 50.0)
    assert not Limits(None, 50.0).is_over(10**9, 49.0)
