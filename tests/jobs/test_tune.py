"""Tuning: what is taken and what is only reported, from trials whose costs are known; and one that is real."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import TrainingError
from headrace.instruments import ladder
from headrace.instruments.ladder import Tuning
from headrace.instruments.trial import Cost
from headrace.jobs.tune import tune
from headrace.perf.paired import gain
from headrace.report import report
from headrace.run.config import Config, Layers
from headrace.training.execution import Execution
from tests.conftest import make_text
from tests.report.run_folder import write_run

Command = Callable[..., tuple[int, str, str]]
BAD = {
    "training.threads": 7, "training.micro_batch_size": 16, "training.precision": "float32",
    "training.matmul": "default", "training.attention": "fused", "training.engine": "torch",
    "data.num_workers": 1, "data.prefetch_batches": 0,
}  # fmt: skip


def tiny(tmp_path: Path, **changes: Any) -> Config:
    (tmp_path / "corpus.txt").write_text(make_text(20_000))
    values: dict[str, Any] = {
        "model.d_model": 128, "model.num_heads": 2, "model.num_layers": 2, "training.max_length": 64,
        "training.batch_size": 16, "data.sources": [str(tmp_path / "corpus.txt")], "data.tokenizer": "byte",
        "data.cache_dir": str(tmp_path / "cache"),
    }  # fmt: skip
    layers = Layers()
    layers.add({**values, **changes}, "test")
    return layers.build()


class KnownTrial:
    """A trial that costs what a rule says, and computes nothing."""

    seconds: Callable[[Config], float] = staticmethod(lambda config: 1.0)

    def __init__(self, config: Config, is_chosen: bool = False) -> None:
        self._config = config
        if config.training.batch_size > 64:
            raise TrainingError("no memory")
        self.execution = Execution.from_config(config.training)

    def measure(self) -> Cost:
        return Cost(1e-6 * type(self).seconds(self._config), 1000 * self._config.training.micro_batch_size)

    def close(self) -> None:
        pass

    def __enter__(self) -> KnownTrial:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def tuned_by(
    monkeypatch: pytest.MonkeyPatch, config: Config, seconds: Callable[[Config], float], minutes: float = 100
) -> Tuning:
    monkeypatch.setattr(ladder, "Trial", KnownTrial)
    monkeypatch.setattr(ladder, "share_of_cores", lambda _: 2)
    monkeypatch.setattr(KnownTrial, "seconds", staticmethod(seconds))
    return tune(config, minutes)


def test_what_is_faster_is_taken_and_what_changes_the_result_is_only_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(config: Config) -> float:
        cost = 1.0 if config.training.threads == 2 else 2.0
        cost *= 1.0 if config.training.micro_batch_size == 8 else 1.5
        cost *= 1.0 if config.data.num_workers == 2 else 1.1
        return cost * (0.5 if config.model.num_layers == 1 else 1.0)

    result = tuned_by(monkeypatch, tiny(tmp_path, **BAD), seconds)
    assert result.record().model_dump()["changes"] == {
        "training.threads": 2, "training.micro_batch_size": 8, "data.num_workers": 2, "data.prefetch_batches": "auto",
    }  # fmt: skip
    assert result.tuned.training.threads == 2
    assert result.tuned.model.num_layers == 2
    assert result.gain.percent == pytest.approx(100 * (2 * 1.5 * 1.1 - 1))
    assert result.tuned_tokens_per_second == pytest.approx(1e6)
    fewer = next(f for f in result.findings if "model.num_layers" in f.option.changes)
    assert fewer.option.changes_result and not fewer.is_taken
    assert fewer.gain is not None and fewer.gain.percent == pytest.approx(100)


def test_a_gain_that_later_noise_swallows_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disturbances = itertools.cycle([1.0, 50.0])

    def seconds(config: Config) -> float:
        cost = 1.0 if config.training.threads == 2 else 1.3
        return cost * (next(disturbances) if config.model.num_layers == 1 else 1.0)

    result = tuned_by(monkeypatch, tiny(tmp_path, **BAD), seconds)
    assert result.record().changes == {}
    assert result.tuned.training.threads == BAD["training.threads"]
    assert result.tuned_tokens_per_second == result.tokens_per_second


def test_a_config_that_cannot_be_improved_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path, **BAD)
    result = tuned_by(monkeypatch, config, lambda _: 1.0)
    assert result.tuned == result.given
    assert result.gain.percent == 0


def test_the_batch_grows_while_updates_get_cheaper_and_memory_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tuned_by(monkeypatch, tiny(tmp_path, **BAD), lambda config: 1 + 8 / config.training.batch_size)
    assert result.best_batch_size == 64
    failed = next(f for f in result.findings if f.option.changes.get("training.batch_size") == 128)
    assert failed.problem == "failed: no memory"
    settled = tuned_by(monkeypatch, tiny(tmp_path, **BAD), lambda config: 1 + 0.1 / config.training.batch_size)
    assert settled.best_batch_size == 16
    too_large = tuned_by(monkeypatch, tiny(tmp_path, **BAD, **{"training.memory_budget": "1KB"}), lambda _: 1.0)
    assert too_large.best_batch_size is None


def test_what_there_was_no_time_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tuned_by(monkeypatch, tiny(tmp_path, **BAD), lambda _: 1.0, minutes=0.01)
    assert all("not tried" in finding.problem for finding in result.findings)
    assert result.best_batch_size is None, "not measured"


def test_low_precision_is_questioned_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tuned_by(monkeypatch, tiny(tmp_path, **{**BAD, "training.precision": "bfloat16"}), lambda _: 1.0)
    assert any(finding.option.changes.get("training.precision") == "float32" for finding in result.findings)


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "has_compiler", lambda: False)
    result = tuned_by(monkeypatch, tiny(tmp_path, **BAD), lambda _: 1.0)
    compiled = next(finding for finding in result.findings if "training.compile" in finding.option.changes)
    assert compiled.problem == "not tried: no C++ compiler here"


def test_noise_is_not_a_gain() -> None:
    noisy = gain([(1.0, 0.8), (1.0, 1.2), (1.0, 0.9)], 0.01)
    assert not noisy.is_clear
    assert gain([(1.0, 0.80), (1.0, 0.81), (1.0, 0.80)], 0.01).is_clear


def test_tune_apply_writes_a_config_that_trains(tmp_path: Path, command: Command) -> None:
    tiny(tmp_path)
    arguments = [
        str(tmp_path / "corpus.txt"), "model.d_model=32", "model.num_layers=1", "training.max_length=32",
        "training.batch_size=4", "data.tokenizer=byte", f"data.cache_dir={tmp_path / 'cache'}", "training.threads=1",
    ]  # fmt: skip
    out = tmp_path / "tuned.yaml"
    out.write_text("mine")
    code, _, err = command("tune", *arguments, "--apply", "--out", str(out))
    assert (code, "was not written by headrace tune" in err) == (2, True)
    out.unlink()
    code, text, err = command("tune", *arguments, "--minutes", "0.2", "--apply", "--out", str(out), "--json")
    assert code == 0, err
    result = json.loads(text.splitlines()[-1])
    assert result["tokens_per_second"] > 0
    assert {finding["changes_result"] for finding in result["findings"]} == {True, False}
    code, text, err = command("config", str(out))
    assert code == 0, err
    assert "micro_batch_size" in text
    code, _, err = command("tune", *arguments, "--out", str(out))
    assert (code, "--out needs --apply" in err) == (2, True)


def test_a_run_is_tuned_and_its_report_knows(tmp_path: Path, command: Command) -> None:
    run = write_run(tmp_path / "run")
    config = tiny(tmp_path, **{**BAD, "run.processes": 2}).model_dump()
    (run / "config.json").write_text(json.dumps(config))
    code, _, err = command("tune", "corpus.txt", "--run", str(run))
    assert (code, "give only KEY=VALUE" in err) == (2, True)
    code, text, err = command("tune", "--run", str(run), "training.threads=1", "--minutes", "0.1", "--json")
    assert code == 0, err
    measured = json.loads((run / "tune.json").read_text())
    assert measured["tokens_per_second"] == json.loads(text.splitlines()[-1])["tokens_per_second"]


def test_the_report_puts_measured_gains_first(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", **{"data wait": 0.1})
    found = {"changes": {"training.threads": 2}, "gain_percent": 80.0, "spread_percent": 3.0, "changes_result": False}
    slower = {**found, "changes": {"training.compile": True}, "gain_percent": -5.0}
    (run / "tune.json").write_text(json.dumps({"findings": [{**f, "note": ""} for f in (slower, found)]}))
    text = report([run], markdown=True)
    assert "measured: 80.0% ± 3.0" in text
    assert "training.compile=True" not in text
    assert text.index("measured: 80.0%") < text.index("predicted: up to")
