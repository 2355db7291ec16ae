"""The law of the loss: what it must say whatever its coefficients are."""

from __future__ import annotations

import pytest

from headrace.perf.loss_law import Exposure, Law


def exposed(parameters: float = 1e6, vocab_size: int = 1024, tokens: float = 1e6, unique: float = 1e9) -> Exposure:
    return Exposure(parameters, 0.7 * parameters, vocab_size, tokens, unique, bytes_per_token=3.0)


def test_more_of_anything_helps_but_a_text_by_heart() -> None:
    law = Law()
    base = law.bits_per_byte(exposed())
    assert law.bits_per_byte(exposed(parameters=2e6)) < base
    assert law.bits_per_byte(exposed(tokens=2e6)) < base
    sizes = [law.bits_per_byte(exposed(vocab_size=size, tokens=1e5)) for size in (300, 1024, 30_000)]
    assert sizes[1] < min(sizes[0], sizes[2]), "short windows of small vocabularies, rare tokens of large ones"
    ends = [law.best_share(exposed(size, tokens=2e8, unique=1e6)) for size in (1e6, 5e7)]
    assert ends[1] < ends[0] < 0.5, "a text is learned by heart, and sooner by a large network"


def test_repeats_are_worth_less_and_less() -> None:
    useful = [exposed(tokens=n * 1e6, unique=1e6).useful_tokens / 1e6 for n in (0.5, 1, 4, 1000)]
    assert useful[:2] == [0.5, 1.0]
    assert 3.0 < useful[2] < 4.0
    assert useful[3] == pytest.approx(6.0)


def test_short_runs_move_the_law_towards_what_they_measured() -> None:
    law = Law()
    short_runs = [
        (exposed(n, 1024, d), law.bits_per_byte(exposed(n, 1024, d)) + 0.3) for n in (3e5, 3e6) for d in (1e5, 1e6)
    ]
    fitted = law.fitted(short_runs)
    for exposure, seen in short_runs:
        assert abs(fitted.bits_per_byte(exposure) - seen) < 0.03
    assert law.fitted([]) == law
    exact = law.fitted([(exposure, law.bits_per_byte(exposure)) for exposure, _ in short_runs])
    assert exact.bits_per_byte(exposed()) == pytest.approx(law.bits_per_byte(exposed()))
    assert fitted.capacity == law.capacity, "short runs show how hard the text is, and no more"


def test_an_interval_is_wider_the_further_it_is_from_what_was_measured() -> None:
    law, measured = Law(), exposed(tokens=1e5)
    widths = []
    for tokens in (1e5, 1e6, 1e8):
        low, high = law.interval(exposed(tokens=tokens), measured)
        assert low < law.bits_per_byte(exposed(tokens=tokens)) < high
        widths.append((high - low) / law.bits_per_byte(exposed(tokens=tokens)))
    assert widths == sorted(set(widths))


def test_a_law_says_where_it_extrapolates() -> None:
    assert exposed(tokens=2e6).beyond_fitted() == ""
    assert exposed(tokens=8e8).beyond_fitted() == "the text is 100 times larger"
    assert exposed(parameters=3e7 / 0.7, tokens=5e4).beyond_fitted() == (
        "the text is 10 times smaller and the network is 10 times larger"
    )
