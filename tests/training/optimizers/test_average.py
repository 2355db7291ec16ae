"""The average of weights over the newest updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.distributed.replicas import Replica
from headrace.models.network import Network
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.optimizers.average import WeightAverage, updates_between
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.step import TrainStep
from tests.training.tiny import random_batch, small

STEPS = 2000


def moved(network: Network, value: float) -> None:
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)


def averaged(values: np.ndarray, share: float) -> float:
    """The average of weights that take these values, one after each update."""
    network = small()
    average = WeightAverage(network, share, 0)
    for value in values:
        moved(network, float(value))
        average.follow()
    return float(average.weights[0].flatten()[0])


def test_the_average_is_over_the_given_share_of_the_updates() -> None:
    """Weights that grow by 1 with every update are on average as far behind as the horizon is long."""
    for share in (0.02, 0.1, 0.3):
        behind = STEPS - averaged(np.arange(1, STEPS + 1), share)
        # Weighted by (t / steps) ** (1 / share - 1), and at most one interval late.
        assert behind == pytest.approx(STEPS * share / (1 + share), rel=0.15), share


def test_leaving_updates_out_averages_noise_nearly_as_well() -> None:
    assert updates_between(0.05 * STEPS) == 8
    noise = np.random.default_rng(0).normal(size=STEPS)
    smooth = np.convolve(noise, np.ones(20) / 20, mode="same")  # weights change slowly
    assert abs(averaged(smooth, 0.05)) < 0.5 * smooth.std()


def test_a_share_of_one_is_the_plain_mean() -> None:
    values = np.arange(1.0, 8.0)
    assert updates_between(7) == 1
    first = float(small().embedding.weight.detach().flatten()[0])
    assert averaged(values, 1.0) == pytest.approx((first + values.sum()) / 8)


def test_it_follows_the_weights_closely_at_the_beginning() -> None:
    assert averaged(np.array([5.0]), 0.05) == pytest.approx(5.0, rel=0.05)


def test_an_average_goes_on_from_its_saved_weights() -> None:
    network = small()
    whole = WeightAverage(network, 0.05, 0)
    for step in range(1, 501):
        moved(network, (step * 7919 % 101) / 101)
        whole.follow()
        if step == 333:
            resumed = WeightAverage(network, 0.05, step, [weight.clone() for weight in whole.weights])
        elif step > 333:
            resumed.follow()
    assert all(torch.equal(a, b) for a, b in zip(whole.weights, resumed.weights, strict=True))


def test_training_does_not_see_it() -> None:
    networks = []
    for is_averaged in (False, True):
        network = small()
        average = WeightAverage(network, 0.5, 0) if is_averaged else None
        step = TrainStep(Replica(network), Optimizer(network, TrainingConfig()), Execution(8), 1.0, average)
        for seed in range(5):
            step(random_batch(seed), 1.0)
            with Replica(network).whole(average.weights if average else None) as model:
                assert model(torch.arange(16)[None]).isfinite().all()
        networks.append(network)
    assert all(torch.equal(a, b) for a, b in zip(networks[0].parameters(), networks[1].parameters(), strict=True))
    assert average is not None
    assert not torch.equal(average.weights[0], networks[1].embedding.weight)


def test_lent_weights_are_the_models_and_come_back() -> None:
    network = small()
    replica, average = Replica(network), WeightAverage(network, 0.5, 0)
    tokens = torch.arange(16)[None]
    expected = network(tokens)
    moved(network, 0.5)
    with replica.whole(average.weights) as model:
        assert torch.equal(model(tokens), expected)
        assert model is not network
    with replica.whole(average.weights) as model:
        assert torch.equal(model(tokens), expected), "they can be lent again"
    assert all(bool((parameter == 0.5).all()) for parameter in network.parameters())
