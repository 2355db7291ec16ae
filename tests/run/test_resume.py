"""Resuming: finished runs, other checkpoints, runs that were killed, and what must survive it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CheckpointError, TokenizerError
from headrace.jobs.train import train
from headrace.report.read import read_run
from headrace.run.config import Layers
from headrace.run.pretraining import Pretraining
from headrace.training.step import StepResult, TrainStep
from tests.run.tiny_run import contents, losses, settings

Command = Callable[..., tuple[int, str, str]]


def test_a_finished_run_is_left_as_it_is(command: Command, run: Path) -> None:
    before = contents(run)
    summary = json.loads((run / "summary.json").read_text())
    code, out, err = command("train", "--resume", run, "--json")
    assert code == 0
    assert "finished at step 12; raise training.max_steps to go on" in err
    assert contents(run) == before
    shown = json.loads(out.splitlines()[-1])
    assert {**shown, "run": ""} == {**summary, "run": ""}
    assert command("train", "--resume", run, "training.max_steps=13")[0] == 0, "what the message says works"


@pytest.mark.parametrize("named", ["runs/one", "runs/last", "runs/one/checkpoints/best"])
def test_a_resumed_run_is_called_as_it_was(
    command: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    (tmp_path / "runs").mkdir()
    run.rename(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "last").symlink_to("one")
    monkeypatch.chdir(tmp_path)
    code, out, err = command("train", "--resume", named, "training.max_steps=12")
    assert code == 0, err
    assert "run=runs/one" in out.splitlines()
    assert str(tmp_path) not in out.replace(str(tmp_path / "runs" / "one" / "checkpoints"), "")
    monkeypatch.chdir(tmp_path / "runs" / "one")
    code, out, err = command("train", "--resume", ".", "training.max_steps=12")
    assert code == 0, err
    assert f"run={tmp_path / 'runs' / 'one'}" in out.splitlines()


def test_a_stopped_run_that_a_lower_limit_ends_is_not_told_to_go_on(command: Command, run: Path) -> None:
    path = run / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "was_stopped": True}))
    code, _, err = command("train", "--resume", run, "training.max_steps=10")
    assert code == 0
    assert "finished at step 12" in err
    assert "stopped and saved" not in err


def test_a_summary_that_a_killed_run_did_not_come_to_is_written(run: Path, values: dict[str, Any]) -> None:
    before = json.loads((run / "summary.json").read_text())
    (run / "summary.json").unlink()
    train(**{**values, "training.max_steps": 12})
    after = json.loads((run / "summary.json").read_text())
    for key in (
        "steps",
        "tokens",
        "first_loss",
        "train_loss",
        "validation_loss",
        "best_validation_loss",
        "first_sample",
    ):
        assert after[key] == before[key] != 0, key


def test_what_a_run_has_seen_survives_a_resume(run: Path, values: dict[str, Any]) -> None:
    before = json.loads((run / "summary.json").read_text())
    layers = Layers()
    layers.add({**values, "training.evaluate_every": 100, "training.save_every": 100}, "test")
    from headrace.cli.progress import TrainingDisplay

    with Pretraining(layers.build(), should_stop=lambda: pretraining.loop.position.step == 13) as pretraining:
        display = TrainingDisplay(pretraining)
        assert [step for step, _ in display._screen.curve.points()] == list(range(1, 13)), (
            "the curve begins with the run"
        )
        assert [step for step, _ in display._screen.validations] == [4, 8, 12]
        assert [info.step for info in pretraining.steps()] == [13]
    after = json.loads((run / "summary.json").read_text())
    assert after["steps"] == 13
    for key in ("first_loss", "validation_loss", "validation_bits_per_byte", "best_validation_loss", "first_sample"):
        assert after[key] == before[key] is not None, key
    assert [step for step, _ in losses(run)] == list(range(1, 14))


def test_a_checkpoint_by_its_name(command: Command, run: Path) -> None:
    code, _, err = command("train", "--resume", run / "checkpoints" / "best", "training.max_steps=10")
    assert code == 0, err
    assert "resuming from step 8" in err
    assert [step for step, _ in losses(run)] == list(range(1, 11))
    samples = [step for step, _ in read_run(run).samples]
    assert samples == sorted(set(samples)), "samples of steps that come again are forgotten"
    code, _, err = command("train", "--resume", run / "checkpoints" / "step-00000099")
    assert code == 1
    assert "no such checkpoint" in err


def test_a_run_killed_before_its_first_checkpoint_begins_again(
    command: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> StepResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainStep, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        train(**settings(finished / "corpus.txt", tmp_path / "run"))
    monkeypatch.undo()
    code, _, err = command("train", "--resume", tmp_path / "run")
    assert code == 0, err
    assert "no checkpoint yet: the run begins again from its configuration" in err
    assert losses(tmp_path / "run") == losses(finished / "run")
    assert (tmp_path / "run" / "samples.txt").read_text() == (finished / "run" / "samples.txt").read_text()


def test_a_damaged_configuration_is_taken_from_the_checkpoint(command: Command, run: Path) -> None:
    (run / "config.json").write_bytes(b"\xff{")
    code, _, err = command("train", "--resume", run, "training.max_steps=13")
    assert code == 0, err
    assert "Its configuration is taken from" in err
    assert json.loads((run / "config.json").read_text())["training"]["max_steps"] == 13


def test_a_run_killed_between_its_first_save_and_the_link_to_it(run: Path, values: dict[str, Any]) -> None:
    for name in ("last", "best"):
        (run / "checkpoints" / name).unlink()
    assert train(**{**values, "run.resume": "auto"}).steps == 14
    assert [step for step, _ in losses(run)] == list(range(1, 15))


def test_files_are_as_readable_as_the_umask_says(finished: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        train(**settings(finished / "corpus.txt", tmp_path / "run", **{"training.max_steps": 1}))
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run" / "checkpoints" / "last").resolve().iterdir() if path.is_file()]
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o640"}


def test_a_resumed_run_keeps_the_heads_and_the_base_that_it_began_with(finished: Path, tmp_path: Path) -> None:
    values = settings(finished / "corpus.txt", tmp_path / "run")
    before = {"model.num_heads": 4, "model.rope_theta": 10_000.0}
    train(**{**values, **before})
    unsaid = {key: value for key, value in values.items() if key not in before}
    train(**{**unsaid, "run.resume": True, "training.max_steps": 15})
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["model"]
    assert {key: saved[key.removeprefix("model.")] for key in before} == before
    train(**{**unsaid, "model.num_heads": 0, "run.resume": True, "training.max_steps": 17})
    with pytest.raises(CheckpointError, match=r"model\.d_model was 32 in the run and is 34 now"):
        train(**{**unsaid, "run.resume": True, "model.d_model": 34})
    with pytest.raises(CheckpointError, match=r"training\.related_tokens was 0 in the run and is 0\.5 now"):
        train(**{**unsaid, "run.resume": True, "training.related_tokens": 0.5})


def test_a_run_writes_how_many_heads_it_has_before_it_reads_its_text(finished: Path, tmp_path: Path) -> None:
    values = settings(finished / "corpus.txt", tmp_path / "run", **{"model.num_heads": 0, "data.tokenizer": "none"})
    with pytest.raises(TokenizerError):
        train(**values)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["num_heads"] == 1
