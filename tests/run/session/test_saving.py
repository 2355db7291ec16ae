"""Saving beside training: what is saved is the moment of the save, whatever training does meanwhile."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from headrace.errors import HeadraceError
from headrace.jobs.train import train
from headrace.run.config import Layers
from headrace.run.pretraining import Pretraining
from headrace.run.session import saving
from headrace.training import checkpoint
from tests.conftest import make_text
from tests.run.tiny_run import settings

SAVED_STEP = 4


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text(make_text(20_000))
    return tmp_path / "corpus.txt"


def opened(corpus: Path, out: Path, **changes: Any) -> Pretraining:
    layers = Layers()
    seldom = {"training.evaluate_every": 100, "training.save_every": SAVED_STEP}
    layers.add(settings(corpus, out, **{**seldom, **changes}), "the test")
    return Pretraining(layers.build())


def tensors(run: Path, name: str = "last") -> dict[str, Any]:
    folder = run / "checkpoints" / name
    return {**load_file(folder / "model.safetensors"), **load_file(folder / "optimizer.safetensors")}


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(bool((left[name] == right[name]).all()) for name in left)


class Gate:
    """Stops a save before it writes its tensors, until it is opened."""

    def __init__(self) -> None:
        self.is_reached, self.is_open, self._save_file = threading.Event(), threading.Event(), checkpoint.save_file

    def save_file(self, *arguments: Any, **options: Any) -> None:
        self.is_reached.set()
        self.is_open.wait(60)
        self._save_file(*arguments, **options)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(checkpoint, "save_file", gate.save_file)
    return gate


def test_killed_while_a_save_is_under_way_the_run_goes_on_to_the_same_weights(
    corpus: Path, tmp_path: Path, gate: Gate
) -> None:
    """A copy of the run directory is what a kill would leave: training is two steps ahead of its unfinished save."""
    with opened(corpus, tmp_path / "run") as pretraining:
        for info in pretraining.steps():
            if info.step == SAVED_STEP + 2:
                gate.is_reached.wait(60)
                assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))
                shutil.copytree(tmp_path / "run", tmp_path / "killed", symlinks=True)
                assert list((tmp_path / "killed" / "checkpoints").glob("*.tmp")), "a save is under way"
                gate.is_open.set()
            if info.step == 2 * SAVED_STEP - 1:
                pretraining._saving.wait()
                shutil.copytree(tmp_path / "run", tmp_path / "later", symlinks=True)
    for name, first_step in (("killed", 1), ("later", SAVED_STEP + 1)):
        with opened(corpus, tmp_path / name, **{"run.resume": True}) as pretraining:
            steps = [info.step for info in pretraining.steps()]
        assert steps[0] == first_step
        assert same(tensors(tmp_path / name), tensors(tmp_path / "run"))
        assert not list((tmp_path / name / "checkpoints").glob("*.tmp"))


@pytest.mark.parametrize("has_memory", [True, False])
def test_a_snapshot_is_the_moment_of_the_save(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memory: bool
) -> None:
    if not has_memory:
        monkeypatch.setattr(saving, "available_memory_bytes", lambda: 0)
    with opened(corpus, tmp_path / "whole", **{"training.max_steps": 2 * SAVED_STEP}) as pretraining:
        for info in pretraining.steps():
            if info.step == SAVED_STEP:
                assert pretraining._saving._must_wait is not has_memory
            if info.step == SAVED_STEP + 1:
                pretraining._saving.wait()
                shutil.copytree(tmp_path / "whole", tmp_path / "early", symlinks=True)
    # The same schedule, stopped there: an unbroken run is the same up to that step.
    with opened(corpus, tmp_path / "stopped", **{"training.max_steps": 2 * SAVED_STEP}) as stopped:
        stopped._should_stop = stopped.loop._should_stop = lambda: stopped.loop.position.step == SAVED_STEP
        assert len(list(stopped.steps())) == SAVED_STEP
    assert same(tensors(tmp_path / "early"), tensors(tmp_path / "stopped"))


def test_a_memory_budget_without_room_for_a_copy_makes_saves_wait(corpus: Path, tmp_path: Path) -> None:
    tight = {"training.memory_budget": "10MB", "run.force": True}
    with opened(corpus, tmp_path / "run", **tight) as pretraining:
        for info in pretraining.steps():
            if info.step == SAVED_STEP:
                assert pretraining._saving._must_wait
    assert not pretraining._saving._buffers


def test_a_failed_save_is_told_at_the_next_step_and_leaves_the_last_good_one(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    steps = []
    with opened(corpus, tmp_path / "run") as pretraining, pytest.raises(HeadraceError, match="the disk is full"):
        for info in pretraining.steps():
            steps.append(info.step)
            if info.step == 2 * SAVED_STEP - 1:
                pretraining._saving.wait()
                monkeypatch.setattr(checkpoint, "save_file", full)
            if info.step == 2 * SAVED_STEP:
                assert pretraining._saving._saver._job is not None
                pretraining._saving._saver._job._thread.join()
    assert steps[-1] == 2 * SAVED_STEP
    state = json.loads((tmp_path / "run" / "checkpoints" / "last" / "state.json").read_text())
    assert state["step"] == SAVED_STEP
    monkeypatch.undo()
    run = train(**settings(corpus, tmp_path / "run", **{"run.resume": True}))
    assert run.steps == 12
