"""Whole runs: exact resume, the run directory, signals, and everything that can go wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import headrace as hr
from headrace.data.batch import Batch
from headrace.errors import CheckpointError, TrainingError, UsageError, WorkerError
from headrace.jobs.train import train
from headrace.run.pretraining import Pretraining
from headrace.training.loop import StepInfo
from headrace.training.step import StepResult
from tests.conftest import make_text
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text(make_text(40_000))
    return tmp_path / "corpus.txt"


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "last" / "model.safetensors")


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    "changes",
    [
        {"training.dropout": 0.2},
        {"model.arch": "gpt2"},
        {"data.packing": "document", "training.short_windows": 8},
        {"training.optimizer": "adamw"},
    ],
)
def test_a_run_stopped_anywhere_and_resumed_is_the_unbroken_run(
    corpus: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    whole = train(**settings(corpus, tmp_path / "whole", **changes))
    assert whole.steps == 12
    for stop_at in (1, 5, 8):
        out = tmp_path / f"broken-{stop_at}"
        values = settings(corpus, out, **changes)
        seen: list[int] = []
        from headrace.run.config import Layers

        layers = Layers()
        layers.add(values, "test")
        with Pretraining(layers.build(), lambda: len(seen) + 1 >= stop_at) as pretraining:  # noqa: B023
            for info in pretraining.steps():
                seen.append(info.step)  # noqa: PERF401 - the run looks at it while it grows
        assert len(seen) in (stop_at - 1, stop_at), "at the end of the step, or while it waits for batches"
        assert pretraining.run.was_stopped
        run = train(**{**values, "run.resume": True, "data.num_workers": 1})
        assert run.steps == 12
        assert same(weights(tmp_path / "whole"), weights(out))
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        expected = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 13))
        assert [line["loss"] for line in lines] == [line["loss"] for line in expected]


def test_golden_losses(corpus: Path, tmp_path: Path) -> None:
    """A refactoring that changes these changes training."""
    losses: list[float] = []
    train(**settings(corpus, tmp_path / "run"), hooks=[lambda info: losses.append(info.loss)])
    assert losses[:4] == pytest.approx(GOLDEN, abs=2e-3)


GOLDEN = [5.5473, 5.4582, 5.3723, 5.3012]


def test_the_run_directory(corpus: Path, tmp_path: Path) -> None:
    infos: list[StepInfo] = []
    run = hr.train(nested(settings(corpus, tmp_path / "runs" / "one")), hooks=[infos.append])
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "config.json",
        "corpus.json",
        "metrics.jsonl",
        "run.lock",
        "samples.txt",
        "environment.json",
        "checkpoints",
        "summary.json",
        "ledger.json",
    }
    assert (tmp_path / "runs" / "last").resolve() == run.folder.resolve()
    assert len(infos) == run.steps == 12
    assert run.validation_loss == infos[-1].evaluation.loss  # type: ignore[union-attr]
    total = sum(run.seconds.values())
    assert total == pytest.approx(run.train_seconds, rel=0.05, abs=0.2)
    metrics = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert {"step", "tokens", "loss", "learning_rate", "gradient_norm", "elapsed_s", "seconds"} <= metrics[0].keys()
    assert "validation_loss" in metrics[3]
    assert "--- step 0 ---" in (run.folder / "samples.txt").read_text()
    checkpoints = {path.name for path in (run.folder / "checkpoints").iterdir()}
    assert {"last", "best"} <= checkpoints
    assert len(checkpoints) <= 4
    ledger = json.loads((run.folder / "ledger.json").read_text())[0]
    assert ledger["trained"] + ledger["carried"] + ledger["dropped"] == ledger["tokens"]


def nested(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return sections


def test_longer_and_other_settings_on_resume(corpus: Path, tmp_path: Path) -> None:
    values = settings(corpus, tmp_path / "run")
    train(**values)
    assert train(**{**values, "run.resume": "auto", "training.max_steps": 15}).steps == 15
    with pytest.raises(CheckpointError, match=r"model\.d_model was 32 in the run and is 64 now"):
        train(**{**values, "run.resume": True, "model.d_model": 64})
    with pytest.raises(hr.HeadraceError, match="tokenizer"):
        train(**{**values, "run.resume": True, "data.tokenizer": "char", "data.cache_dir": str(tmp_path / "other")})
    with pytest.raises(UsageError, match="holds a run already"):
        train(**values)


def damage(run: Path, how: str) -> None:
    checkpoint = (run / "checkpoints" / "last").resolve()
    model = checkpoint / "model.safetensors"
    if how == "flipped bit":
        data = bytearray(model.read_bytes())
        data[-100] ^= 1
        model.write_bytes(data)
    elif how == "missing file":
        (checkpoint / "optimizer.safetensors").unlink()
    elif how == "foreign pickle":
        (checkpoint / "state.json").unlink()
        model.rename(checkpoint / "pytorch_model.bin")
    else:
        (checkpoint / "state.json").write_text("{}")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("flipped bit", r"model\.safetensors: damaged"),
        ("missing file", r"optimizer\.safetensors: missing"),
        ("foreign pickle", "pickled weights"),
        ("torn state", "not a headrace file"),
    ],
)
def test_damaged_checkpoints(corpus: Path, tmp_path: Path, how: str, message: str) -> None:
    values = settings(corpus, tmp_path / "run")
    train(**values)
    damage(tmp_path / "run", how)
    with pytest.raises(hr.HeadraceError, match=message):
        train(**{**values, "run.resume": True, "training.max_steps": 20})


def test_weights_of_another_shape(corpus: Path, tmp_path: Path) -> None:
    from headrace.models.config import ModelConfig
    from headrace.models.network import build
    from headrace.training.restore import load_weights

    train(**settings(corpus, tmp_path / "run"))
    other = build(ModelConfig(d_model=64, num_layers=2, num_heads=2, vocab_size=257, context=32))
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is \(257, 32\) instead of \(257, 64\)"):
        load_weights(tmp_path / "run" / "checkpoints" / "last", other)


def test_a_corpus_smaller_than_a_batch(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("tiny text " * 12)
    with pytest.raises(UsageError, match="smaller than one batch"):
        train(
            **settings(tmp_path / "tiny.txt", tmp_path / "run", **{"training.num_epochs": 1, "training.max_steps": 0})
        )
    with pytest.raises(UsageError, match="too long for this part of the corpus"):
        train(**settings(tmp_path / "tiny.txt", tmp_path / "run2", **{"training.max_length": 500}))


def test_not_a_number(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.training.step import TrainStep

    call = TrainStep.__call__
    count = [0]

    def sometimes_bad(self: TrainStep, *arguments: Any) -> StepResult:
        count[0] += 1
        result = call(self, *arguments)
        if count[0] in bad:
            result.is_finite, result.loss = False, float("nan")
        return result

    monkeypatch.setattr(TrainStep, "__call__", sometimes_bad)
    bad = {3, 4}
    assert train(**settings(corpus, tmp_path / "run")).skipped_steps == 2
    bad = set(range(18, 100))
    with pytest.raises(TrainingError, match="not finite in 5 updates in a row"):
        train(**settings(corpus, tmp_path / "other"))
    monkeypatch.undo()
    values = settings(corpus, tmp_path / "other", **{"run.resume": True})
    assert train(**values).steps == 12  # from the last good checkpoint


def test_wrong_combinations(corpus: Path, tmp_path: Path) -> None:
    for change, message in (
        ({"training.micro_batch_size": 3}, "does not divide batch_size 4"),
        ({"model.vocab_size": 100}, "smaller than the tokenizer's 257"),
        ({"model.context": 16}, "above the model's context 16"),
        ({"training.memory_budget": "much"}, "not a size"),
    ):
        values = settings(corpus, tmp_path / "run", **change)
        if "training.memory_budget" in change:
            values["training.micro_batch_size"] = 0
        with pytest.raises(UsageError, match=message):
            train(**values)
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        train(**settings(corpus, tmp_path / "nothing", **{"run.resume": True}))


def test_a_failed_save_keeps_the_last_checkpoint(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = settings(corpus, tmp_path / "run", **{"training.max_steps": 4})
    train(**values)
    before = weights(tmp_path / "run")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace.training.checkpoint.save_file", full)
    with pytest.raises(hr.HeadraceError, match="the disk is full"):
        train(**{**values, "run.resume": True, "training.max_steps": 8})
    monkeypatch.undo()
    assert same(before, weights(tmp_path / "run"))
    assert not list((tmp_path / "run" / "checkpoints").glob("*.tmp"))
    assert train(**{**values, "run.resume": True, "training.max_steps": 8}).steps == 8


def test_too_little_disk(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10, 5, 5))
    with pytest.raises(CheckpointError, match="only 0 MiB are free"):
        train(**settings(corpus, tmp_path / "run"))


def as_arguments(values: dict[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def test_commands(command: Command, corpus: Path, tmp_path: Path) -> None:
    code, out, err = command("train", *as_arguments(settings(corpus, tmp_path / "run")), "--json")
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert {
        "run", "steps", "tokens", "train_seconds", "tokens_per_second", "train_loss", "validation_loss",
        "data_wait_percent", "percent_of_peak", "peak_memory_bytes", "parameters",
    } <= result.keys()  # fmt: skip
    assert "step=12" in err
    assert "next=headrace report" in out
    texts = [
        command("generate", tmp_path / "run", "--prompt", "the", "--seed", 3, "--max-tokens", 40)[1] for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert texts[0].startswith("the")
    code, out, _ = command("generate", tmp_path / "run", "--num-samples", 2, "--json")
    assert len(json.loads(out.splitlines()[-1])["samples"]) == 2
    code, _, err = command("generate", tmp_path / "nothing")
    assert code == 1
    assert "no such run" in err
    code, out, err = command("train", "--resume", tmp_path / "run", "training.max_steps=14", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["steps"] == 14


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_says_how_to_go_on(corpus: Path, tmp_path: Path, kind: signal.Signals) -> None:
    values = settings(corpus, tmp_path / "run", **{"training.max_steps": 100_000, "training.evaluate_every": 100_000})
    child = subprocess.Popen(
        [sys.executable, "-m", "headrace", "train", *as_arguments(values)], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or metrics.stat().st_size < 1000:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(kind)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 3, err
    assert "stopped and saved. Continue with: headrace train --resume" in err
    state = json.loads((tmp_path / "run" / "checkpoints" / "last" / "state.json").read_text())
    assert state["step"] == len(metrics.read_text().splitlines())


def test_a_loader_worker_that_dies_ends_the_run_and_loses_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.data.batch import Assembler

    assemble = Assembler.batches

    def fail_later(self: Assembler, step: int, count: int) -> list[Batch]:
        if step + count > 9 and threading.current_thread().name.startswith("headrace-load"):
            raise MemoryError("no room")
        return assemble(self, step, count)

    monkeypatch.setattr(Assembler, "batches", fail_later)
    values = settings(corpus, tmp_path / "run", **{"data.num_workers": 1})
    with pytest.raises(WorkerError, match=r"step \d+ \(MemoryError: no room\)"):
        train(**values)
    monkeypatch.undo()
    run = train(**{**values, "run.resume": True})
    train(**settings(corpus, tmp_path / "whole"))
    assert same(weights(run.folder), weights(tmp_path / "whole"))


def test_tensorboard_gets_the_same_numbers(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(**settings(corpus, tmp_path / "run", **{"run.tensorboard": True}))
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    losses = [event.value for event in events.Scalars("loss")]
    metrics = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert losses == pytest.approx([line["loss"] for line in metrics])


def test_what_was_chosen_is_recorded_and_resolved(corpus: Path, tmp_path: Path) -> None:
    values = settings(corpus, tmp_path / "run", **{"training.max_steps": 60})  # a noisy machine compares longer
    for key in ("micro_batch_size", "precision", "matmul", "attention", "engine"):
        del values[f"training.{key}"]
    run = train(**values)
    execution = json.loads((run.folder / "environment.json").read_text())["execution"]
    training = json.loads((run.folder / "config.json").read_text())["training"]
    assert execution["micro_batch_size"] == training["micro_batch_size"] > 0
    assert execution["precision"] == training["precision"] != "auto"
    assert execution["matmul"] == training["matmul"] != "auto"
    assert execution["attention"] == training["attention"] != "auto"
    assert execution["engine"] == training["engine"] != "auto"


@pytest.mark.soak
def test_killed_twenty_times_the_weights_are_those_of_an_unbroken_run(corpus: Path, tmp_path: Path) -> None:
    import random

    """Saves are made in a thread: some kills hit one while the steps after it are trained."""
    changes = {"training.max_steps": 400, "training.evaluate_every": 7, "training.save_every": 2}
    train(**settings(corpus, tmp_path / "whole", **changes))
    values = settings(corpus, tmp_path / "run", **changes, **{"run.resume": "auto"})
    arguments = [sys.executable, "-m", "headrace", "train", *as_arguments(values)]
    metrics, checkpoints = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "checkpoints"
    rng = random.Random(0)
    during_saves = 0
    for kill in range(20):
        lines = len(metrics.read_text().splitlines()) if metrics.exists() else 0
        child = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wanted = lines + rng.randint(2, 9)
        while not metrics.exists() or len(metrics.read_text().splitlines()) < wanted:
            assert child.poll() is None, "the run must not end before it has been killed 20 times"
            time.sleep(0.002)
        if kill % 2:
            while not list(checkpoints.glob("*.tmp")):
                assert child.poll() is None
        else:
            time.sleep(rng.uniform(0, 0.05))
        child.kill()
        child.wait()
        during_saves += bool(list(checkpoints.glob("*.tmp")))
    assert during_saves >= 3, "some kills must hit a save"
    subprocess.run(arguments, check=True, capture_output=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))
