"""A run whose threads change while it trains: written down, repeated on resume, and never where they are given."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headrace.run.config import Config, Layers
from headrace.run.execution import thread_policy as room
from headrace.run.execution.choice import ExecutionChoice
from headrace.run.execution.log import ExecutionLog
from headrace.run.execution.thread_policy import ThreadPolicy, Window
from headrace.run.execution.threads import RunThreads
from headrace.run.pretraining import Pretraining
from headrace.run.resume import read_checkpoint_state
from headrace.training.execution import Execution
from tests.conftest import make_text
from tests.run.tiny_run import settings

FREE = {"training.threads": 0, "training.save_every": 4, "training.evaluate_every": 100}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a text; a run may use two threads, every step is a window, and other programs are quiet."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "user-cache"))
    monkeypatch.setattr("headrace.run.environment.measure_peak_flops", lambda *_: 1e9)
    monkeypatch.setattr("headrace.machine.contention.ProcessorTime.taken_percent_since", lambda *_: 0.0)
    monkeypatch.setattr(room, "WINDOW_S", 0.0)
    monkeypatch.setattr(room, "WINDOW_STEPS", 1)
    torch.set_num_threads(2)
    path = tmp_path / "corpus.txt"
    path.write_text(make_text(30_000))
    yield path


def script(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Let runs decide these numbers of threads, one for each window, and then leave them alone."""
    left = list(numbers)

    def decide(policy: ThreadPolicy, _: Window) -> int:
        policy.threads = left.pop(0) if left else policy.threads
        return policy.threads

    monkeypatch.setattr(ThreadPolicy, "next", decide)


def configured(corpus: Path, name: str, **changes: Any) -> Config:
    layers = Layers()
    layers.add(settings(corpus, corpus.parent / name, **{**FREE, **changes}), "the test")
    return layers.build()


def resumed(folder: Path, **changes: Any) -> Config:
    layers = Layers()
    layers.add(json.loads((folder / "config.json").read_text()), "the run")
    layers.add({"run.out": str(folder), "run.resume": True, **changes}, "the test")
    return layers.build()


def used_threads(config: Config) -> list[int]:
    """Run to the end; return the threads that each step left to the next one."""
    with Pretraining(config) as pretraining:
        return [torch.get_num_threads() for _ in pretraining.steps()]


def test_changes_are_written_down_and_repeated_on_resume(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = corpus.parent / "whole", corpus.parent / "broken"
    script(monkeypatch, 2, 2, 2, 2, 1, 1, 1, 2)
    with Pretraining(configured(corpus, "whole")) as pretraining:
        for info in pretraining.steps():
            if info.step == 6:
                pretraining._saving.wait()
                shutil.copytree(whole, broken, symlinks=True)  # a kill, after the checkpoint of step 4
    changes = ExecutionLog.read(whole).threads
    assert list(changes.values()) == [1, 2]
    shutil.copy(whole / "executions.json", broken)  # killed later, with the same checkpoint
    state = read_checkpoint_state(broken / "checkpoints" / "last")
    assert (state.position.step, state.execution.threads, state.most_threads) == (4, 2, 2)

    threads = used_threads(resumed(broken))
    assert threads == [1 if step + 1 in range(*changes) else 2 for step in range(5, 13)]
    assert ExecutionLog.read(broken).threads == changes
    left, right = (load_file(run / "checkpoints" / "last" / "model.safetensors") for run in (whole, broken))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_change_right_after_the_checkpoint_is_repeated() -> None:
    choice = ExecutionChoice(Execution(1, threads=2))
    RunThreads(choice, ExecutionLog(threads={3: 1, 4: 2, 5: 1, 9: 2}), most=2, step=4)
    assert (choice.execution.threads, torch.get_num_threads()) == (1, 1)


def test_threads_that_are_given_stay(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, *[1] * 100)
    assert set(used_threads(configured(corpus, "given", **{"training.threads": 2}))) == {2}
    state = read_checkpoint_state(corpus.parent / "given" / "checkpoints" / "last")
    assert state.most_threads == 0
    assert set(used_threads(resumed(corpus.parent / "given", **{"training.max_steps": 16}))) == {2}


def test_a_person_is_told_once(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    said = iter(["other programs use the processor"])
    monkeypatch.setattr(room.ThreadControl, "take_notice", lambda _: next(said, None))
    with Pretraining(configured(corpus, "told")) as pretraining:
        list(pretraining.steps())
    assert pretraining.run.warnings == ["other programs use the processor"]
