"""The laws behind `plan --minutes`: what they must say whatever their coefficients are."""

from __future__ import annotations

import pytest

from headrace.models.config import ModelConfig
from headrace.perf.hour import Pace, Prospect, fit_pace, flops_per_token, foresee, shapes, vocabularies_for
from headrace.perf.loss_law import Exposure, Law
from headrace.training.optimizers.assignment import update_flops

PACE = Pace(per_flop=1e-11, per_layer=1e-6)


def exposed(parameters: float = 1e6, vocab_size: int = 1024, tokens: float = 1e6, unique: float = 1e9) -> Exposure:
    return Exposure(parameters, vocab_size, tokens, unique, bytes_per_token=3.0)


def prospect(width: int, layers: int, seconds: float, unique_tokens: float) -> Prospect:
    model = ModelConfig(d_model=width, num_layers=layers, vocab_size=1024, context=128)
    return foresee(model, 128, update_flops(model, "muon"), unique_tokens, 3.0, seconds, PACE, Law())


def best_shape(seconds: float, unique_tokens: float) -> float:
    """Parameters of the best network."""
    found = [prospect(width, layers, seconds, unique_tokens) for width, layers in shapes()]
    return min(found, key=lambda one: one.bits_per_byte).exposure.parameters


def test_more_of_anything_helps_but_a_text_by_heart() -> None:
    law = Law()
    base = law.bits_per_byte(exposed())
    assert law.bits_per_byte(exposed(parameters=2e6)) < base
    assert law.bits_per_byte(exposed(tokens=2e6)) < base
    assert law.bits_per_byte(exposed(vocab_size=4096)) > base, "rare tokens"
    many = [law.bits_per_byte(exposed(parameters=5e7, tokens=n * 1e6, unique=1e6)) for n in (1, 4, 200)]
    assert min(many) < many[-1], "a large network learns a small text by heart"


def test_repeats_are_worth_less_and_less() -> None:
    useful = [exposed(tokens=n * 1e6, unique=1e6).useful_tokens / 1e6 for n in (0.5, 1, 4, 1000)]
    assert useful[:2] == [0.5, 1.0]
    assert 3.5 < useful[2] < 4.0
    assert useful[3] == pytest.approx(16.4)


def test_trials_move_the_law_towards_what_they_saw() -> None:
    law = Law()
    trials = [
        (exposed(n, 1024, d), law.bits_per_byte(exposed(n, 1024, d)) + 0.3) for n in (3e5, 3e6) for d in (1e5, 1e6)
    ]
    fitted = law.fitted(trials)
    for exposure, seen in trials:
        assert abs(fitted.bits_per_byte(exposure) - seen) < 0.03
    assert law.fitted([]) == law
    exact = law.fitted([(exposure, law.bits_per_byte(exposure)) for exposure, _ in trials])
    assert exact.bits_per_byte(exposed()) == pytest.approx(law.bits_per_byte(exposed()))
    assert fitted.capacity == law.capacity, "short trials tell how hard the text is, and no more"


def test_pace_of_one_measurement_or_of_noise() -> None:
    assert fit_pace([(2e6, 4, 4e-5)]) == Pace(pytest.approx(2e-11), 0.0)
    noisy = fit_pace([(1e6, 2, 9e-5), (4e6, 4, 8e-5)])
    assert noisy.per_flop > 0
    assert noisy.per_layer >= 0


def test_the_optimizer_costs_less_per_token_in_larger_batches() -> None:
    model = ModelConfig(d_model=256, num_layers=4, vocab_size=1024, context=128)
    small, large = (flops_per_token(model, 128, tokens, update_flops(model, "muon")) for tokens in (1024, 65_536))
    assert small > 1.2 * large
    assert flops_per_token(model, 128, 1024, update_flops(model, "adamw")) < small


def test_what_is_foreseen_adds_up() -> None:
    found = prospect(128, 4, seconds=300, unique_tokens=4e5)
    assert found.exposure.tokens == pytest.approx(300 * found.tokens_per_second)
    assert found.bits_per_byte == Law().bits_per_byte(found.exposure)


def test_more_time_asks_for_a_larger_network() -> None:
    minute, hour, day = (best_shape(seconds, 1e10) for seconds in (60, 3600, 86_400))
    assert minute < hour < day


def test_vocabularies_grow_with_the_corpus() -> None:
    assert max(vocabularies_for(1e5)) < max(vocabularies_for(1e6)) < max(vocabularies_for(1e7))
