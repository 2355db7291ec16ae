"""The pace of this machine: never faster than its peak lets expect, slower where updates are, and measured once."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.perf.pace import usual_pace
from headrace.run.start import pace
from headrace.run.start.pace import UpdateTime, machine_pace

PEAK = 1e11


@pytest.fixture
def fresh_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose peak is known, and nothing else."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(pace, "_peak_flops", lambda: PEAK)


def updates_take(seconds_per_token: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_measure_updates", lambda _num_threads: UpdateTime(seconds_per_token))


@pytest.mark.usefixtures("fresh_machine")
def test_a_machine_on_which_updates_are_fast_has_the_usual_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    updates_take(1e-9, monkeypatch)
    assert machine_pace() == usual_pace(PEAK)
    assert machine_pace(4) == usual_pace(4 * PEAK)


@pytest.mark.usefixtures("fresh_machine")
def test_slow_updates_slow_every_expectation_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "is_disturbed", lambda _taken: True)  # nothing is remembered
    updates_take(1.0, monkeypatch)
    slow = machine_pace()
    assert slow.per_flop / usual_pace(PEAK).per_flop == pytest.approx(slow.per_layer / usual_pace(PEAK).per_layer)
    updates_take(3.0, monkeypatch)
    assert machine_pace().per_flop == pytest.approx(3 * slow.per_flop)
    assert machine_pace(2).per_layer == pytest.approx(3 * slow.per_layer)


@pytest.mark.usefixtures("fresh_machine")
def test_what_a_quiet_machine_showed_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "is_disturbed", lambda _taken: False)
    updates_take(1.0, monkeypatch)
    first = machine_pace()
    updates_take(2.0, monkeypatch)
    assert machine_pace() == first


def test_real_updates_are_timed() -> None:
    assert 1e-8 < pace._measure_updates(0).seconds_per_token < 1e-2
