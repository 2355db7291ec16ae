"""The model of scaling, on cases whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.perf.scaling import Step, expect, ring_bytes

STEP = Step(passes_s=8.0, backward_s=6.0, optimizer_s=0.0, num_micro_batches=1, gradient_bytes=1000, last_bytes=0)


def test_hidden_communication_costs_nothing() -> None:
    expected = expect(STEP, 4, bytes_per_second=1000)
    assert expected.communication_s == pytest.approx(1.5)
    assert expected.exposed_s == pytest.approx(0.0)
    assert expected.speedup == pytest.approx(4.0)


def test_slow_links_are_waited_for() -> None:
    expected = expect(STEP, 2, bytes_per_second=100)  # 10 s of travel behind 3 s of backward
    assert expected.exposed_s == pytest.approx(7.0)
    assert expected.step_s == pytest.approx(11.0)
    assert expected.speedup < 1


def test_accumulation_hides_behind_one_micro_batch_only() -> None:
    whole, parts = (expect(replace(STEP, num_micro_batches=n), 2, bytes_per_second=400) for n in (2, 8))
    assert whole.exposed_s == pytest.approx(0.0)  # 2.5 s behind 3 s
    assert parts.exposed_s == pytest.approx(2.5 - 3.0 / 4)


def test_what_ends_the_backward_pass_is_never_hidden() -> None:
    assert expect(replace(STEP, last_bytes=300), 2, 1000).exposed_s == pytest.approx(0.3)


def test_the_optimizer_is_not_divided() -> None:
    expected = expect(replace(STEP, optimizer_s=2.0), 8, bytes_per_second=1e12)
    assert expected.speedup == pytest.approx(10 / 3)


def test_one_process_sends_nothing() -> None:
    assert ring_bytes(1, 1e9) == 0
    alone = expect(STEP, 1, bytes_per_second=1.0)
    assert (alone.exposed_s, alone.speedup) == (0.0, 1.0)
