from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.data.batch import Batch
from headrace.errors import TrainingError
from headrace.models.config import ModelConfig
from headrace.models.loss import head_loss
from headrace.models.network import Network, build
from headrace.training.autotune import choose, fastest
from headrace.training.config import TrainingConfig
from headrace.training.loop import BatchStream, Loop, Position
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.schedule import Limits, learning_rate_factor
from headrace.training.step import Execution, TrainStep, accumulate


def small(arch: Any = "qwen3") -> Network:
    return build(ModelConfig(arch=arch, d_model=32, num_heads=2, num_layers=2, vocab_size=50, context=16), seed=1)


def random_batch(seed: int = 0, masked: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 50, (8, 17)).astype(np.uint16)
    mask = rng.random((8, 16)) < 0.7 if masked else None
    return Batch(0, tokens[:, :-1], tokens[:, 1:], None, mask)


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize("masked", [False, True])
def test_micro_batches_give_the_same_gradients(arch: str, masked: bool) -> None:
    gradients = []
    for size in (1, 2, 4, 8):
        network = small(arch)
        accumulate(network, random_batch(masked=masked), Execution(size), {"forward": 0.0, "backward": 0.0})
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    for gradient in gradients[1:]:
        assert (gradient - gradients[0]).norm() < 1e-5 * gradients[0].norm()


def test_a_gradient_that_is_not_finite_never_reaches_the_weights() -> None:
    network = small()
    step = TrainStep(network, Optimizer(network, TrainingConfig()), Execution(8), 1.0)
    step(random_batch(), 1.0)
    before = [parameter.clone() for parameter in network.parameters()]
    with torch.no_grad():
        kept = network.embedding.weight.clone()
        network.embedding.weight[3] = float("nan")
    result = step(random_batch(1), 1.0)
    assert not result.is_finite
    with torch.no_grad():
        network.embedding.weight.copy_(kept)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert step(random_batch(2), 1.0).is_finite


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
    step = TrainStep(network, Optimizer(network, training), Execution(8), 1.0)
    loop = Loop(training, Limits(1000, None), cast(BatchStream, _Endless()), step, Position(step=998), _nothing, _save)
    rates = [info.learning_rate for info in loop.steps()]
    assert len(rates) == 2
    assert rates[-1] == training.learning_rate * learning_rate_factor(training, 0.999)
    assert 0 < rates[-1] < 0.003 * training.learning_rate
    assert learning_rate_factor(training, 0.0) == 0.01


class _Endless:
    def __next__(self) -> Batch:
        return random_batch()


def _nothing() -> tuple[None, str]:
    return None, ""


def _save(_: bool) -> None:
    pass


def test_the_limit_that_comes_first_ends_the_run() -> None:
    limits = Limits(steps=100, seconds=50.0)
    assert limits.progress(10, 25.0) == 0.5
    assert limits.progress(80, 25.0) == 0.8
    assert limits.is_over(100, 1.0)
    assert limits.is_over(1, 50.0)
    assert not Limits(None, 50.0).is_over(10**9, 49.0)


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize(
    "execution",
    [Execution(4, use_onednn=True), Execution(4, gradient_checkpointing=True), Execution(4, head_chunk_bytes=1)],
    ids=str,
)
def test_ways_to_compute_a_step_give_the_same_gradients(arch: str, execution: Execution) -> None:
    gradients = []
    for way in (Execution(4), execution):
        network = small(arch)
        way.apply_to(network)
        accumulate(network, random_batch(masked=True), way, {"forward": 0.0, "backward": 0.0})
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    assert (gradients[1] - gradients[0]).norm() < 1e-5 * gradients[0].norm()


def test_logits_exist_in_chunks_of_the_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watch(*arguments: Any) -> Tensor:
        seen.append(arguments[-1])
        return head_loss(*arguments)

    monkeypatch.setattr("headrace.training.step.head_loss", watch)
    network, way = small("gpt2"), Execution(4, head_chunk_bytes=12345)
    way.apply_to(network)
    accumulate(network, random_batch(), way, {"forward": 0.0, "backward": 0.0})
    assert set(seen) == {12345}


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

    def time(_network: Network, _batch: Batch, execution: Execution) -> float:
        size = execution.micro_batch_size * (per_sequence // 4 if execution.gradient_checkpointing else per_sequence)
        used["bytes"] = size
        return 1.0 / execution.micro_batch_size

    monkeypatch.setattr("headrace.training.autotune._time", time)
    monkeypatch.setattr("headrace.training.autotune.memory_bytes", lambda: 1000 + used["bytes"])
    training = TrainingConfig(batch_size=8, max_length=256, precision="float32")
    assert choose(small(), random_batch(), training).micro_batch_size == 8
    within = choose(small(), random_batch(), training, memory_limit=1600, reserve=80)
    assert (within.micro_batch_size, within.gradient_checkpointing) == (4, False)
    tight = choose(small(), random_batch(), training, memory_limit=1130, reserve=80)
    assert (tight.micro_batch_size, tight.gradient_checkpointing) == (1, True)
    with pytest.raises(TrainingError, match="memory_budget"):
        choose(small(), random_batch(), training, memory_limit=1050, reserve=80)
