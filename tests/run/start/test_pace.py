"""The pace of this machine: as its peak lets expect, or slower where updates are; measured once, undisturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.models.config import ModelConfig
from headrace.perf.pace import Pace, usual_pace
from headrace.run.config import Config
from headrace.run.start import pace
from headrace.run.start.pace import UpdateTimes, machine_pace
from headrace.training.config import TrainingConfig

PEAK = 1e11
USUAL = usual_pace(PEAK)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[UpdateTimes | None]:
    """A machine of which only the peak is known; what is put into the list is what its measurements find, in turn."""
    found: list[UpdateTimes | None] = []
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(pace, "_peak_flops", lambda: PEAK)
    monkeypatch.setattr(pace, "_measure_updates", lambda *_: found.pop(0))
    return found


def slower(*times: float) -> list[float]:
    """Return the seconds per token of updates that take so many times as long as the peak lets expect."""
    training = pace._small_batches(Config().training)
    each = times if len(times) > 1 else times * len(pace.MODELS)
    return [factor * seconds_per_token(USUAL, model, training) for factor, model in zip(each, pace.MODELS, strict=True)]


def seconds_per_token(of: Pace, model: ModelConfig, training: TrainingConfig) -> float:
    in_update = pace.update_flops(model, training.optimizer, pace._likely_execution(training).dtype)
    flops = pace.flops_per_token(model, training.sequence_length, training.tokens_per_update, in_update)
    return of.seconds_per_token(flops, model.num_layers)


def configured(**changes: Any) -> Config:
    config = Config()
    for key, value in changes.items():
        section, _, name = key.partition("__")
        setattr(getattr(config, section), name, value)
    return config


@pytest.mark.parametrize("times", [0.2, 1.0, 1.1])
def test_updates_that_are_fast_enough_change_nothing(times: float, measured: list[UpdateTimes | None]) -> None:
    measured.append(UpdateTimes(slower(times)))
    assert machine_pace(Config()) == USUAL
    assert machine_pace(Config(), 4) == usual_pace(4 * PEAK), "what is remembered serves several processes too"


def test_slow_updates_slow_every_expectation_down(measured: list[UpdateTimes | None]) -> None:
    measured.append(UpdateTimes(slower(3.0)))
    found = machine_pace(Config())
    assert found == Pace(pytest.approx(3 * USUAL.per_flop), pytest.approx(3 * USUAL.per_layer))


def test_a_pace_is_fitted_to_both_networks(measured: list[UpdateTimes | None]) -> None:
    """Where the peak is far above what networks reach, wide ones may lose more than small ones, or less."""
    seconds = slower(2.5, 1.5)
    measured.append(UpdateTimes(seconds))
    found, training = machine_pace(Config()), pace._small_batches(Config().training)
    assert [seconds_per_token(found, model, training) for model in pace.MODELS] == pytest.approx(seconds)


@pytest.mark.parametrize("times", [(2.0, 0.5), (4.0, 1.0), (9.0, 1.0), (1.0, 8.0), (0.5, 1.2)], ids=str)
@pytest.mark.parametrize("peak", [1e10, 1e12, 3e12])
def test_nothing_is_expected_to_be_faster_than_usual_or_measured(
    times: tuple[float, float], peak: float, measured: list[UpdateTimes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "_peak_flops", lambda: peak)
    usual, training = usual_pace(peak), pace._small_batches(Config().training)
    expected = [seconds_per_token(usual, model, training) for model in pace.MODELS]
    seconds = [factor * each for factor, each in zip(times, expected, strict=True)]
    measured.append(UpdateTimes(seconds))
    found = machine_pace(Config())
    assert found != usual
    assert found.per_flop >= usual.per_flop and found.per_layer >= usual.per_layer
    for model, each in zip(pace.MODELS, seconds, strict=True):
        assert seconds_per_token(found, model, training) >= 0.999 * each


def test_processes_share_the_tokens_of_a_slow_machine(measured: list[UpdateTimes | None]) -> None:
    measured.append(UpdateTimes(slower(8.0)))
    alone = machine_pace(Config())
    assert machine_pace(Config(), 2) == Pace(alone.per_flop / 2, alone.per_layer / 2)
    assert machine_pace(Config(), 1000).per_layer == USUAL.per_layer


def test_what_was_measured_is_remembered_until_it_is_asked_for_again(measured: list[UpdateTimes | None]) -> None:
    measured += [UpdateTimes(slower(2.0)), UpdateTimes(slower(4.0))]
    first = machine_pace(Config())
    assert machine_pace(Config()) == first
    again = machine_pace(configured(run__measure_again=True))
    assert again == machine_pace(Config()) != first


def test_what_other_programs_disturbed_counts_for_nothing(measured: list[UpdateTimes | None]) -> None:
    measured += [None, None, UpdateTimes(slower(2.0))]
    assert machine_pace(Config()) == machine_pace(Config()) == USUAL
    assert machine_pace(Config()) != USUAL, "nothing was remembered"


def test_the_way_to_compute_that_is_given_is_the_one_that_is_measured(measured: list[UpdateTimes | None]) -> None:
    measured += [UpdateTimes(slower(2.0)), UpdateTimes(slower(9.0))]
    machine_pace(Config())
    slow = machine_pace(configured(training__engine="torch", training__precision="float32"))
    assert slow.per_flop > 5 * USUAL.per_flop


@pytest.mark.parametrize("case", ["several processes", "a memory budget", "no memory"])
def test_nothing_is_measured_where_that_would_be_wrong(
    case: str, measured: list[UpdateTimes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "no memory":
        monkeypatch.setattr(pace, "available_memory_bytes", lambda: 10_000_000)
    config = configured(training__memory_budget=2_000_000_000) if case == "a memory budget" else Config()
    num_processes = 2 if case == "several processes" else 1
    assert machine_pace(config, num_processes) == usual_pace(num_processes * PEAK)


@pytest.mark.parametrize("is_disturbed", [False, True])
def test_real_updates_are_timed_on_a_quiet_machine(is_disturbed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "is_disturbed", lambda _: is_disturbed)
    monkeypatch.setattr(pace, "UPDATES_S", 0.0)
    training = pace._small_batches(Config().training)
    execution = pace._likely_execution(training)
    found = pace._measure_updates.__wrapped__(execution, training.optimizer, 8)
    assert (
        found is None
        if is_disturbed
        else found is not None and all(1e-8 < each < 1e-2 for each in found.seconds_per_token)
    )
