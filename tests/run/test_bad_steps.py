"""Updates that are not finite or jump: never in the weights or a checkpoint, and always visible."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import TrainingError
from headrace.jobs.train import train
from headrace.report import report
from headrace.training.step import StepResult, TrainStep
from tests.run.tiny_run import contents, settings

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize("steps", [3, 12])
def test_bad_steps_never_replace_a_good_checkpoint(finished: Path, tmp_path: Path, arch: str, steps: int) -> None:
    """With `learning_rate=1e9` weights are lost in one update, whose own loss was fine."""
    values = settings(finished / "corpus.txt", tmp_path / "run", **{"model.arch": arch, "training.max_steps": 2})
    train(**values)
    good = contents((tmp_path / "run" / "checkpoints" / "last").resolve())
    bad = {"training.learning_rate": 1e9, "training.max_steps": steps, "run.resume": True, "training.save_every": 1}
    with pytest.raises(TrainingError, match=r"not finite|no finite loss") as stopped:
        train(**{**values, **bad})
    assert "training.learning_rate" in str(stopped.value)
    last = (tmp_path / "run" / "checkpoints" / "last").resolve()
    assert last.name == "step-00000002"
    assert contents(last) == good
    assert (tmp_path / "run" / "checkpoints" / "best").resolve() == last
    assert train(**{**values, "run.resume": True, "training.max_steps": 4}).steps == 4, "and it goes on from there"


def with_results(monkeypatch: pytest.MonkeyPatch, change: Callable[[int, StepResult], None]) -> None:
    call, count = TrainStep.__call__, [0]

    def changed(self: TrainStep, *arguments: Any) -> StepResult:
        count[0] += 1
        result = call(self, *arguments)
        change(count[0], result)
        return result

    monkeypatch.setattr(TrainStep, "__call__", changed)


def lose(result: StepResult) -> None:
    result.is_finite, result.loss, result.gradient_norm = False, math.nan, math.inf


def test_too_many_skipped_steps_end_a_run_also_when_others_are_between(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_results(monkeypatch, lambda step, result: lose(result) if step % 3 == 0 else None)
    values = settings(finished / "corpus.txt", tmp_path / "run", **{"training.max_steps": 60})
    with pytest.raises(TrainingError, match=r"10 of the last 30 updates \(step 30\)"):
        train(**values)


def test_metrics_are_json_whatever_the_loss(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_results(monkeypatch, lambda step, result: lose(result) if step in (1, 4, 12) else None)
    run = train(**settings(finished / "corpus.txt", tmp_path / "run"))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    def parse(text: str) -> Any:
        return json.loads(text, parse_constant=refuse)

    lines = [parse(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    skipped = [line for line in lines if line.get("skipped")]
    assert [line["step"] for line in skipped] == [1, 4, 12]
    assert all(line["loss"] is None and line["not_finite"] == ["loss", "gradient_norm"] for line in skipped)
    summary = parse((run.folder / "summary.json").read_text())
    assert summary["first_loss"] == lines[1]["loss"]
    assert summary["train_loss"] == lines[10]["loss"]
    assert "3 updates skipped" in report([run.folder]), "readers cope"


def test_a_loss_that_jumps_tenfold_is_one_warning(
    command: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jump(step: int, result: StepResult) -> None:
        if step >= 7:
            result.loss *= 11

    with_results(monkeypatch, jump)
    values = settings(finished / "corpus.txt", tmp_path / "run")
    code, _, err = command("train", *[f"{key}={json.dumps(value)}" for key, value in values.items()])
    assert code == 0
    assert err.count("warning: the loss jumped") == 1
    assert "at step 7" in err
