"""What has its final name survives a power cut: a file is on the disk before it is renamed, its folder's list after."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.files import write_atomically
from headrace.jobs.train import train
from tests.conftest import make_text
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]
MADE_ANEW = "documents"
"""A folder of a cache that need not survive: what is damaged there is noticed and made anew."""


class Disk:
    """What a program asked to be on the disk, and what it renamed without asking."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lock = threading.Lock()
        self.synced: set[int] = set()
        self.unsynced: list[str] = []
        """Final names that files got before their contents were synced."""
        self.folders: set[Path] = set()
        """Folders in which something was renamed since they were synced."""
        self.final_names: list[str] = []
        self._replace = os.replace
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "replace", self.replace)

    def fsync(self, handle: int) -> None:
        number = os.fstat(handle).st_ino
        with self.lock:
            self.synced.add(number)
            self.folders -= {folder for folder in self.folders if folder.exists() and folder.stat().st_ino == number}

    def replace(self, old: str | Path, new: str | Path) -> None:
        files = [path for path in [Path(old), *Path(old).rglob("*")] if path.is_file()]
        if Path(old).is_symlink() or Path(new).parent.name == MADE_ANEW:
            files = []
        with self.lock:
            self.unsynced += [f"{new}: {path.name}" for path in files if path.stat().st_ino not in self.synced]
            self._replace(old, new)
            if files:
                self.folders.add(Path(new).parent)
                self.final_names.append(Path(new).name)

    def check(self) -> None:
        assert not self.unsynced
        assert not {folder for folder in self.folders if folder.exists()}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_file_written_atomically(disk: Disk, tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"text")
    disk.check()
    assert disk.final_names == ["a"]


def test_a_rename_without_a_sync_is_noticed(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "b.tmp").write_text("text")
    os.replace(tmp_path / "b.tmp", tmp_path / "b")
    assert disk.unsynced == [f"{tmp_path / 'b'}: b.tmp"]
    assert disk.folders == {tmp_path}


@pytest.mark.usefixtures("small_scale")
def test_a_cache(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(30_000))
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="bpe:300", out=tmp_path / "cache")
    disk.check()
    assert {path.name for path in cache.path.rglob("*") if path.suffix in (".tokens", ".ends")} <= {*disk.final_names}
    assert {"manifest.json", "tokenizer.json"} <= {*disk.final_names}


def test_checkpoints_and_a_model_for_llama_cpp(command: Command, disk: Disk, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="pip install 'headrace[gguf]'")
    (tmp_path / "a.txt").write_text(make_text(30_000))
    train(**settings(tmp_path / "a.txt", tmp_path / "run", **{"data.tokenizer": "bpe:300", "training.max_steps": 4}))
    code, _, err = command("export", tmp_path / "run", "--gguf", "--out", tmp_path / "model.gguf")
    assert code == 0, err
    disk.check()
    assert {"step-00000004", "model.gguf"} <= {*disk.final_names}
