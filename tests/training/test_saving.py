"""Checkpoints that a thread writes: one at a time, whole or not there, and never lost silently."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.training import checkpoint
from headrace.training.checkpoint import Checkpoints, Contents, small_files
from headrace.training.restore import read_state
from headrace.training.saving import Saver
from tests.data.tokens.tokenizer_kinds import tokenizer_of_kind
from tests.training.tiny import small


@pytest.fixture
def contents() -> Contents:
    network = small()
    return Contents(small_files(network, tokenizer_of_kind("byte")), network.to_hugging_face()[1], {})


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Files of tensors are not written before this is set."""
    gate, save_file = threading.Event(), checkpoint.save_file

    def blocked(*arguments: Any, **options: Any) -> None:
        gate.wait()
        save_file(*arguments, **options)

    monkeypatch.setattr(checkpoint, "save_file", blocked)
    return gate


def test_whoever_saves_goes_on_and_the_second_save_waits(
    tmp_path: Path, contents: Contents, gate: threading.Event
) -> None:
    saver = Saver(Checkpoints(tmp_path))
    saver.begin(contents)
    saver.seal(1, {}, is_best=True)
    saver.check()
    assert not list(tmp_path.glob("step-*")), "it is not there before it is whole"
    gate.set()
    saver.begin(contents)
    assert read_state(tmp_path / "step-00000001")["step"] == 1
    saver.seal(2, {}, is_best=False)
    saver.wait()
    assert (os.readlink(tmp_path / "last"), os.readlink(tmp_path / "best")) == ("step-00000002", "step-00000001")
    assert saver.written_s > 0
    assert not list(tmp_path.glob("*.tmp"))


def test_a_failure_is_told_and_the_last_good_checkpoint_stays(
    tmp_path: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(Checkpoints(tmp_path))
    saver.begin(contents)
    saver.seal(1, {}, is_best=True)
    saver.wait()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "save_file", full)
    saver.begin(contents)
    saver.seal(2, {}, is_best=True)
    assert saver._job is not None
    saver._job._thread.join()
    with pytest.raises(HeadraceError, match="the disk is full"):
        saver.check()
    saver.check()  # it is told once
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000001"]
    assert os.readlink(tmp_path / "last") == os.readlink(tmp_path / "best") == "step-00000001"
    assert not list(tmp_path.glob("*.tmp"))


def test_closing_waits_for_a_sealed_save_and_gives_up_another(
    tmp_path: Path, contents: Contents, gate: threading.Event
) -> None:
    saver = Saver(Checkpoints(tmp_path))
    saver.begin(contents)
    saver.seal(1, {}, is_best=True)
    gate.set()
    saver.close()
    assert read_state(tmp_path / "step-00000001")["step"] == 1
    saver.begin(contents)
    saver.close()
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000001"]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_checkpoint_of_the_same_step_is_there_until_the_new_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final, written = tmp_path / "step-00000003", tmp_path / "saving.tmp"
    for folder in (final, written):
        folder.mkdir()
        (folder / "which").write_text(folder.name)
    replace = os.replace

    def fail_for_the_new_one(source: Path, target: Path) -> None:
        if source == written:
            raise OSError(errno.EIO, "broken")
        replace(source, target)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="broken"):
        patched.setattr(os, "replace", fail_for_the_new_one)
        checkpoint._move_to(final, written)
    assert (final / "which").read_text() == final.name
    checkpoint._move_to(final, written)
    assert (final / "which").read_text() == written.name
    assert list(tmp_path.iterdir()) == [final]
