"""Resuming: finished runs, other checkpoints, damaged and hostile ones, and what must survive it."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import headrace as hr
from headrace.errors import CheckpointError, TrainingError
from headrace.files import read_checked_json, write_checked_json
from headrace.jobs.train import train
from headrace.report import report
from headrace.report.read import read_run
from headrace.run.config import Layers
from headrace.run.pretraining import Pretraining
from headrace.training.restore import file_hash
from headrace.training.step import StepResult, TrainStep
from tests.conftest import make_text
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps with checkpoints at 8 (the best) and 12 (the last)."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "corpus.txt").write_text(make_text(40_000))
    train(**settings(folder / "corpus.txt", folder / "run"))
    checkpoints = folder / "run" / "checkpoints"
    shutil.copytree(checkpoints / "step-00000012", checkpoints / "step-00000008")
    change_state(checkpoints / "step-00000008", lambda state: state["position"].update(step=8))
    change_state(checkpoints / "step-00000008", lambda state: state.update(step=8))
    change_state(checkpoints / "step-00000008", lambda state: state["loader"].update(step=8))
    (checkpoints / "best").unlink()
    (checkpoints / "best").symlink_to("step-00000008")
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    shutil.copytree(finished / "run", tmp_path / "run", symlinks=True)
    return tmp_path / "run"


@pytest.fixture
def values(finished: Path, run: Path) -> dict[str, Any]:
    return settings(finished / "corpus.txt", run, **{"run.resume": True, "training.max_steps": 14})


def change_state(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    state = read_checked_json(checkpoint / "state.json")
    change(state)
    write_checked_json(checkpoint / "state.json", state)


def forge(checkpoint: Path, name: str, change: Callable[[Tensors], Any]) -> None:
    """Change a file of tensors as somebody would who can make checksums."""
    tensors = load_file(checkpoint / name)
    change(tensors)
    save_file(tensors, checkpoint / name)
    change_state(checkpoint, lambda state: state["files"].update({name: file_hash(checkpoint / name)}))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


# A finished run


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
        assert len(display._losses) == 12, "the curve begins with the run"
        assert display._validation
        assert [info.step for info in pretraining.steps()] == [13]
    after = json.loads((run / "summary.json").read_text())
    assert after["steps"] == 13
    for key in ("first_loss", "validation_loss", "validation_bits_per_byte", "best_validation_loss", "first_sample"):
        assert after[key] == before[key] is not None, key
    assert [step for step, _ in losses(run)] == list(range(1, 14))


# From where


def test_a_checkpoint_by_its_name(command: Command, run: Path) -> None:
    code, _, err = command("train", "--resume", run / "checkpoints" / "best", "training.max_steps=10")
    assert code == 0, err
    assert "goes on from step 8" in err
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


# Damage


def damage(run: Path, how: str) -> None:
    last = run / "checkpoints" / "step-00000012"
    if how == "dangling":
        shutil.rmtree(last)
    elif how == "link outside":
        (run / "checkpoints" / "last").unlink()
        (run / "checkpoints" / "last").symlink_to(run.parent)
    else:
        data = bytearray((last / how).read_bytes())
        data[len(data) // 2] ^= 1
        (last / how).write_bytes(data)


@pytest.mark.parametrize("resume", [True, "auto"])
@pytest.mark.parametrize(
    "how",
    [
        "dangling", "link outside", "state.json", "config.json", "model.safetensors",
        "optimizer.safetensors", "tokenizer.json", "tokenizer_config.json",
    ],
)  # fmt: skip
def test_damage_offers_an_older_checkpoint_and_touches_nothing(
    command: Command, run: Path, values: dict[str, Any], how: str, resume: bool | str
) -> None:
    damage(run, how)
    before = contents(run)
    with pytest.raises(CheckpointError) as refusal:
        train(**{**values, "run.resume": resume})
    assert contents(run) == before
    message = str(refusal.value)
    assert "prepare" not in message
    whole = run / "checkpoints" / ("step-00000012" if how == "link outside" else "step-00000008")
    offer = f"headrace train --resume {whole}"
    assert offer in message
    if resume == "auto" and how in ("dangling", "state.json"):
        code, _, err = command(*offer.split()[1:], "training.max_steps=14")
        assert code == 0, err


def test_a_run_killed_between_its_first_save_and_the_link_to_it(run: Path, values: dict[str, Any]) -> None:
    for name in ("last", "best"):
        (run / "checkpoints" / name).unlink()
    assert train(**{**values, "run.resume": "auto"}).steps == 14
    assert [step for step, _ in losses(run)] == list(range(1, 15))


def test_nothing_is_offered_where_nothing_is_whole(run: Path, values: dict[str, Any]) -> None:
    shutil.rmtree(run / "checkpoints" / "step-00000008")
    damage(run, "state.json")
    with pytest.raises(CheckpointError, match="no other checkpoint that is whole"):
        train(**values)


def shrink(tensors: Tensors) -> None:
    name = next(name for name in tensors if name.endswith("exp_avg"))
    tensors[name] = tensors[name].flatten()[:1].clone()


def rename(tensors: Tensors) -> None:
    name = min(tensors)
    tensors["another"] = tensors.pop(name)


def drop(tensors: Tensors) -> None:
    del tensors[min(tensors)]


def retype(kind: torch.dtype) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({min(tensors): tensors[min(tensors)].to(kind)})


def fill(value: float, suffix: str = "") -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        name = next(name for name in sorted(tensors) if name.endswith(suffix))
        tensors[name].view(-1)[-1] = value

    return change


HOSTILE: list[tuple[str, Callable[[Tensors], Any], str]] = [
    ("optimizer.safetensors", shrink, r"exp_avg is \(1,\) instead of \(32,\)"),
    ("optimizer.safetensors", rename, "no tensor"),
    ("optimizer.safetensors", drop, "no tensor"),
    ("optimizer.safetensors", lambda tensors: tensors.update(more=torch.zeros(2)), "unknown tensor more"),
    ("optimizer.safetensors", retype(torch.int8), "is of type I8"),
    ("optimizer.safetensors", fill(math.nan), "not finite"),
    ("optimizer.safetensors", fill(-1.0, ".exp_avg_sq"), "negative"),
    ("model.safetensors", rename, "no tensor"),
    ("model.safetensors", retype(torch.int8), "is of type I8, not F32"),
    ("model.safetensors", retype(torch.bool), "is of type BOOL, not F32"),
    ("model.safetensors", fill(math.nan), "not finite"),
    ("model.safetensors", fill(math.inf), "not finite"),
]


@pytest.mark.parametrize(("name", "change", "message"), HOSTILE)
def test_tensors_that_do_not_belong_are_refused(
    run: Path, values: dict[str, Any], name: str, change: Callable[[Tensors], Any], message: str
) -> None:
    forge(run / "checkpoints" / "step-00000012", name, change)
    before = contents(run)
    with pytest.raises(CheckpointError, match=message) as refusal:
        train(**values)
    assert f"{name}: " in str(refusal.value)
    assert contents(run) == before, "nothing is cut before all was read"


@pytest.mark.parametrize("change", [retype(torch.int8), fill(math.nan)])
def test_generate_refuses_them_too(command: Command, run: Path, change: Callable[[Tensors], Any]) -> None:
    forge(run / "checkpoints" / "step-00000008", "model.safetensors", change)
    code, _, err = command("generate", run)
    assert code == 1
    assert "model.safetensors: " in err
    change_state(run / "checkpoints" / "step-00000012", lambda state: state["config"]["model"].update(d_model=8192))
    code, _, err = command("generate", run / "checkpoints" / "last")
    assert code == 1
    assert "fewer weights" in err


def remove_outside(state: dict[str, Any]) -> None:
    state["files"]["../../config.json"] = "0"


@pytest.mark.parametrize(
    "change",
    [
        remove_outside,
        lambda state: state.update(files=[]),
        lambda state: state.update(files={}),
        lambda state: state.pop("position"),
        lambda state: state["position"].update(step=-3),
        lambda state: state["position"].update(tokens="many"),
        lambda state: state["execution"].update(micro_batch_size=0),
        lambda state: state["execution"].update(threads=10**9),
        lambda state: state["execution"].update(precision="float8"),
        lambda state: state.update(execution=None),
        lambda state: state.update(config={"model": {"d_model": "wide"}}),
        lambda state: state.update(peak_flops=[]),
        lambda state: state.update(loader=7),
        lambda state: state.update(processes=0),
    ],
)
def test_a_state_that_no_run_leaves_is_refused(
    run: Path, values: dict[str, Any], change: Callable[[dict[str, Any]], Any]
) -> None:
    change_state(run / "checkpoints" / "step-00000012", change)
    before = contents(run)
    with pytest.raises(hr.HeadraceError, match="step-00000012"):
        train(**values)
    assert contents(run) == before


def test_files_are_as_readable_as_the_umask_says(finished: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        train(**settings(finished / "corpus.txt", tmp_path / "run", **{"training.max_steps": 1}))
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run" / "checkpoints" / "last").resolve().iterdir() if path.is_file()]
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o640"}


# Bad steps


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
    assert "3 update(s) skipped" in report([run.folder]), "readers cope"


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
