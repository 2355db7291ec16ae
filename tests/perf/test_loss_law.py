"""The law of the loss: what it must say whatever its coefficients are."""

from __future__ import annotations

import pytest

from headrace.perf.loss_law import Expectation, Exposure, Law


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


def test_what_to_expect_begins_at_what_was_measured_and_falls_with_useful_text() -> None:
    measured = exposed(tokens=1e6, unique=1e7)
    assert Expectation.of(measured, measured, 1.8).bits_per_byte == pytest.approx(1.8)
    falls = [Expectation.of(exposed(tokens=n * 1e6, unique=1e7), measured, 1.8).bits_per_byte for n in (3, 9, 1e6)]
    assert 0 < falls[2] < falls[1] < falls[0] < 1.8
    repeated = Expectation.of(exposed(tokens=9e6, unique=1e6), measured, 1.8).bits_per_byte
    assert falls[1] < repeated < 1.8, "the same text again teaches less than new text"


def test_the_results_that_it_was_fitted_to_are_expected() -> None:
    """Loss of a short run and five minutes later, bytes of both and of the text in millions (docs/LOG.md)."""
    for short_bytes, short_loss, whole_bytes, text_bytes, loss in (
        (4.1, 1.585, 34.1, 11.2, 0.966),
        (3.7, 1.829, 48.8, 35.7, 0.978),
        (1.2, 1.947, 17.6, 3.1, 1.371),
        (2.6, 1.933, 34.4, 1.0, 1.810),
    ):
        short, whole = (exposed(tokens=1e6 * n / 3, unique=1e6 * text_bytes / 3) for n in (short_bytes, whole_bytes))
        low, high = Expectation.of(whole, short, short_loss).interval
        assert low < loss < high


def test_what_cannot_be_told_is_said_with_a_wider_interval() -> None:
    measured = exposed(tokens=1e6, unique=1e12)
    near, far = (Expectation.of(exposed(tokens=n * 1e6, unique=1e12), measured, 1.8) for n in (10, 1e4))
    assert near.unchecked_efolds == 0 < far.unchecked_efolds
    assert far.interval[1] - far.interval[0] > 0.4 * far.bits_per_byte
    assert Expectation.of(exposed(tokens=1, unique=1e12), measured, 1.8).bits_per_byte == 1.8, "never above"
    easy = Expectation.of(exposed(tokens=1e7, unique=1e12), measured, 0.3).bits_per_byte
    assert 0.1 < easy < 0.3, "an easy text falls by a share of what there is"


def test_an_interval_is_wider_the_further_it_is_from_what_was_measured() -> None:
    measured = exposed(tokens=1e5)
    widths = []
    for tokens in (1e5, 1e6, 1e8):
        expected = Expectation.of(exposed(tokens=tokens), measured, 1.8)
        low, high = expected.interval
        assert low < expected.bits_per_byte < high
        widths.append((high - low) / expected.bits_per_byte)
    assert widths == sorted(set(widths))


def test_a_law_says_where_it_extrapolates() -> None:
    assert exposed(tokens=2e6).beyond_fitted() == ""
    assert exposed(tokens=8e8).beyond_fitted() == "the text is 100 times larger"
    assert exposed(parameters=3e7 / 0.7, tokens=5e4).beyond_fitted() == (
        "the text is 10 times smaller and the network is 10 times larger"
    )
