"""Scaling is measured as it is said, remembered, and used by `run.processes=auto`. No test here is about speed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import TrainingError
from headrace.instruments import processes
from headrace.instruments.scaling import Way, scale, ways_for_all
from headrace.run.config import Config
from headrace.run.remembered_scaling import Measured, Scaling, remember_scaling, remembered_scaling

SMALL: dict[str, Any] = {
    "model": {"d_model": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 64},
    "training": {"batch_size": 4, "max_length": 16, "precision": "float32", "matmul": "default", "attention": "fused"},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def measured(way: Way, tokens_per_second: float) -> Measured:
    return Measured(
        way.by, way.cores, way.processes, way.threads, tokens_per_second, 1.0, 100.0, 1 << 20, 1.0,
        aggregation_percent=1.0 if way.processes > 1 else None,
    )  # fmt: skip


def worker(step_s: float, taken_percent: float | None) -> dict[str, Any]:
    """What a worker of one process writes down."""
    return {
        "steps_s": [step_s], "stages_s": {"forward": step_s, "backward": 0.0, "optimizer": 0.0}, "aggregation_s": [],
        "cpu_cores": 1.0, "peak_memory_bytes": 1 << 20, "taken_percent": taken_percent,
        "gradient_bytes": 8, "last_gradient_bytes": 4, "all_reduce_bytes_per_second": None,
    }  # fmt: skip


def scaling(speeds: dict[Way, float]) -> Scaling:
    return Scaling(2, 64, "ddp", [measured(way, speed) for way, speed in speeds.items()], None, "today")


@pytest.mark.parametrize("sharding", ["ddp", pytest.param("fsdp", marks=pytest.mark.soak)])
def test_updates_are_measured_in_processes_of_their_own(sharding: str) -> None:
    config = Config.model_validate({**SMALL, "run": {"sharding": sharding}})
    seen: list[tuple[Way, int]] = []
    ways = [Way(1, 1), Way(2, 1)]
    result = scale(config, ways, num_steps=2, num_repeats=1, on_run=lambda way, repeat: seen.append((way, repeat)))
    assert seen == [(way, 0) for way in ways]
    one, two = result.measured
    assert (one.by, one.processes, two.by, two.processes) == ("threads", 1, "processes", 2)
    assert one.speedup == 1.0
    assert two.efficiency_percent == pytest.approx(100 * two.speedup / 2)
    assert one.aggregation_percent is None
    assert (two.aggregation_percent is None) == (sharding == "fsdp")
    assert two.expected_speedup is not None
    assert all(way.memory_bytes_per_worker > 10 << 20 and way.cpu_cores > 0 for way in result.measured)
    assert result.all_reduce_bytes_per_second is not None
    for way in result.measured:
        way.taken_percent = None  # whatever else runs beside this test
    remember_scaling(config, result)
    assert remembered_scaling(config) == result


def test_what_cannot_be_measured_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(TrainingError, match=r"2 processes x 1 thread: could not be measured"):
        scale(Config.model_validate(SMALL), [Way(2, 1)], num_steps=1, num_repeats=1)


def test_one_way_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(way: Way, *_: object) -> list[dict[str, Any]]:
        if way.processes == 2:
            raise TrainingError("2 processes: no memory")
        return [{}]

    monkeypatch.setattr("headrace.instruments.scaling._run", run)
    monkeypatch.setattr("headrace.instruments.scaling._summary", lambda way, runs, _: measured(way, 100.0 * len(runs)))
    config = Config.model_validate(SMALL)
    result = scale(config, [Way(1, 1), Way(2, 1), Way(1, 2)], num_repeats=2)
    assert [(way.processes, way.threads) for way in result.measured] == [(1, 1), (1, 2)]
    assert result.failures == ["2 processes: no memory"]
    with pytest.raises(TrainingError, match="no memory"):
        scale(config, [Way(2, 1), Way(1, 1)])


def test_only_what_was_measured_for_this_config_is_remembered() -> None:
    config = Config.model_validate(SMALL)
    known = scaling({Way(1, 2): 100.0, Way(2, 1): 120.0})
    remember_scaling(config, known)
    assert remembered_scaling(config) is not None
    changes: list[tuple[str, dict[str, Any]]] = [
        ("model", {"d_model": 64}), ("training", {"batch_size": 8}), ("training", {"sampled_tokens": 8}),
        ("run", {"sharding": "fsdp"}),
    ]  # fmt: skip
    for section, change in changes:
        other = Config.model_validate({**SMALL, section: {**SMALL.get(section, {}), **change}})
        assert remembered_scaling(other) is None


def test_heads_that_are_open_are_those_that_a_run_writes_down() -> None:
    config = Config.model_validate({**SMALL, "model": {**SMALL["model"], "num_heads": 0}})
    remember_scaling(config, scaling({Way(1, 2): 100.0}))
    config.model.num_heads = config.model.heads
    assert remembered_scaling(config) is not None


def test_runs_that_others_disturbed_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([worker(7.0, 80.0), worker(1.0, 2.0), worker(5.0, 40.0)])
    monkeypatch.setattr("headrace.instruments.scaling._run", lambda *_: [next(runs)])
    config = Config.model_validate(SMALL)
    result = scale(config, [Way(1, 2)], num_repeats=3)
    assert result.measured[0].tokens_per_second == pytest.approx(64.0)
    assert result.taken_percent == 2.0
    remember_scaling(config, result)
    assert remembered_scaling(config) is not None


def test_a_disturbed_measurement_is_said_and_not_remembered(
    monkeypatch: pytest.MonkeyPatch, command: Callable[..., tuple[int, str, str]]
) -> None:
    """On a busy machine 2 threads came out as 0.14 times one, and `run.processes=auto` believed it for ever."""
    monkeypatch.setattr("headrace.instruments.scaling._run", lambda way, *_: [worker(float(way.threads), 55.0)])
    config = Config.model_validate(SMALL)
    result = scale(config, [Way(1, 1), Way(1, 2)])
    remember_scaling(config, result)
    assert remembered_scaling(config) is None

    warnings: list[str] = []
    monkeypatch.setattr(processes, "scale", lambda *_, **__: result)
    monkeypatch.setattr(processes, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(processes, "ways_for_all", lambda *_: [Way(1, 1), Way(1, 2)])
    processes.best_processes(Config.model_validate({**SMALL, "run": {"processes": "auto"}}), warnings.append)
    assert len(warnings) == 1
    assert "other programs had the processor for up to 55% of the time" in warnings[0]
    from headrace.jobs import scale as job

    monkeypatch.setattr(job, "measure", lambda *_: result)
    _, out, _ = command("scale", "--preset", "demo")
    assert "disturbed: other programs had the processor for up to 55% of the time" in " ".join(out.split())


@pytest.mark.parametrize("better", [Way(1, 2), Way(2, 1)])
def test_auto_is_the_better_of_threads_and_processes(better: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[Way]] = []

    def pretend(_config: Config, ways: list[Way], **_: Any) -> Scaling:
        calls.append(ways)
        return scaling({way: 2.0 if way == better else 1.0 for way in ways})

    monkeypatch.setattr(processes, "scale", pretend)
    monkeypatch.setattr(processes, "usable_cores", lambda: [0, 1])
    config = Config.model_validate({**SMALL, "run": {"processes": "auto"}})
    assert processes.best_processes(config) == better.processes
    assert processes.best_processes(config) == better.processes
    assert calls == [[Way(1, 2), Way(2, 1)]], "measured once, then remembered"


def test_auto_goes_on_as_it_began(tmp_path: Path) -> None:
    config = Config.model_validate({**SMALL, "run": {"processes": "auto", "resume": "auto", "out": str(tmp_path)}})
    (tmp_path / "config.json").write_text(json.dumps({"run": {"processes": 3}}))
    assert processes.best_processes(config) == 3


def test_a_batch_that_does_not_divide_leaves_threads() -> None:
    assert ways_for_all(2, 7) == [Way(1, 2)]


def test_larger_numbers_are_projected_and_marked(
    command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.jobs import scale as job

    def run(way: Way, *_: object) -> list[dict[str, Any]]:
        return [{**worker(8.0 / way.cores, 0.0), "all_reduce_bytes_per_second": 1e12}] * way.processes

    monkeypatch.setattr("headrace.instruments.scaling._run", run)
    monkeypatch.setattr(job, "usable_cores", lambda: [0, 1])
    options = ("model.d_model=32", "model.num_heads=2", "training.batch_size=16", "training.precision=float32")
    code, out, said = command("scale", "--preset", "demo", *options, "--project", "64, 4", "--json")
    assert code == 0
    assert "Measuring: 2 processes, round 3 of 3" in said
    *shown, last = out.strip().splitlines()
    assert shown[0].startswith("best: ")
    assert max(map(len, shown)) <= 400, "one line for each remark where there is no terminal"
    assert [line.split()[0] for line in shown if line.endswith("projected") or "% projected" in line] == ["4", "64"]
    four, many = json.loads(last)["projected"]
    assert (four["processes"], four["batch_size"], four["is_batch_grown"]) == (4, 16, False)
    assert (many["processes"], many["batch_size"], many["is_batch_grown"]) == (64, 64, True)
    assert four["speedup"] == pytest.approx(4.0)
    assert four["tokens_per_second"] == pytest.approx(4 * 16 * 128 / 8.0)
    code, _, said = command("scale", "--preset", "demo", "--project", "4,x")
    assert (code, "write numbers of processes with commas" in said) == (2, True)
    code, _, said = command("scale", "--preset", "demo", "--cores", "1", "--project", "4")
    assert (code, "averaging gradients has to be measured between 2 processes" in said) == (2, True)


def test_the_command_shows_what_was_measured(
    command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.jobs import scale as job

    def pretend(_config: Config, ways: list[Way], *_: Any) -> Scaling:
        return scaling({way: 10.0 * way.cores for way in ways})

    monkeypatch.setattr(job, "measure", pretend)
    monkeypatch.setattr(job, "usable_cores", lambda: [0, 1])
    code, out, _ = command("scale", "--preset", "demo", "--json")
    assert code == 0
    *shown, last = out.strip().splitlines()
    assert any("2 processes" in line and "20" in line and "1.0%" in line for line in shown)
    result = json.loads(last)
    assert [way["cores"] for way in result["measured"]] == [1, 2, 2]
    assert result["best"]["cores"] == 2
    code, _, said = command("scale", "--preset", "demo", "--cores", "3")
    assert (code, "--cores 3: this process may use 2 cores" in said) == (2, True)
