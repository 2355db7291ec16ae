"""The estimate behind `plan --minutes`: what must hold whatever the machine and the coefficients are."""

from __future__ import annotations

import pytest
import torch

from headrace.models.config import ModelConfig
from headrace.perf.loss_law import Law
from headrace.perf.pace import Pace, Prospect, fit_pace, flops_per_token, foresee
from headrace.perf.search_space import shapes
from headrace.training.optimizers.assignment import update_flops

PACE = Pace(per_flop=1e-11, per_layer=1e-6)


def prospect(width: int, layers: int, seconds: float, unique_tokens: float) -> Prospect:
    model = ModelConfig(d_model=width, num_layers=layers, vocab_size=1024, context=128)
    return foresee(
        model, 128, 128, update_flops(model, "muon", torch.float32), unique_tokens, 3.0, seconds, PACE, Law()
    )


def best_shape(seconds: float, unique_tokens: float) -> float:
    """Parameters of the best network."""
    found = [prospect(width, layers, seconds, unique_tokens) for width, layers in shapes()]
    return min(found, key=lambda one: one.bits_per_byte).exposure.parameters


def test_pace_of_one_measurement_or_of_noise() -> None:
    assert fit_pace([(2e6, 4, 4e-5)]) == Pace(pytest.approx(2e-11), 0.0)
    noisy = fit_pace([(1e6, 2, 9e-5), (4e6, 4, 8e-5)])
    assert noisy.per_flop > 0
    assert noisy.per_layer >= 0


def test_the_optimizer_costs_less_per_token_in_larger_batches() -> None:
    model = ModelConfig(d_model=256, num_layers=4, vocab_size=1024, context=128)
    by_muon = update_flops(model, "muon", torch.float32)
    small, large = (flops_per_token(model, 128, tokens, by_muon) for tokens in (1024, 65_536))
    assert small > 1.2 * large
    assert flops_per_token(model, 128, 1024, update_flops(model, "adamw", torch.float32)) < small


def test_what_is_foreseen_adds_up() -> None:
    found = prospect(128, 4, seconds=300, unique_tokens=4e5)
    assert found.exposure.tokens == pytest.approx(300 * found.tokens_per_second)
    assert found.bits_per_byte == Law().bits_per_byte(found.exposure)


def test_more_time_asks_for_a_larger_network() -> None:
    minute, hour, day = (best_shape(seconds, 1e10) for seconds in (60, 3600, 86_400))
    assert minute < hour < day
