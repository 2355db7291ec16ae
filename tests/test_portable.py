"""headrace without the calls that only Linux has: they are removed in a process, which then trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.files import point_to, pointed_to, read_at
from tests.conftest import make_text
from tests.run.tiny_run import settings

WITHOUT = """
import os, signal, sys
import filelock, psutil, tokenizers, torch

for name in (
    "pread pwrite fork forkpty sched_getaffinity sched_setaffinity posix_fadvise killpg getuid geteuid setsid getpgid"
    " symlink mkfifo posix_spawn getloadavg"
).split():
    vars(os).pop(name, None)
for name in "SIGHUP SIGUSR1 SIGUSR2 SIGALRM setitimer pthread_sigmask pthread_kill".split():
    vars(signal).pop(name, None)
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
"""
"""Removes what Windows lacks before headrace is imported, and after the libraries that do without it by themselves."""
TRAIN = """
import json, sys
import headrace as hr

run = hr.train(**json.loads(sys.argv[1]))
resumed = hr.train(**json.loads(sys.argv[2]))
print(json.dumps([run.validation_loss, resumed.steps, hr.generate(run.folder, "the ", max_tokens=5)]))
"""


def run_code(code: str, *arguments: object) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", code, *(json.dumps(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_model_is_trained_resumed_and_used_without_calls_of_linux(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    first = settings(tmp_path / "a.txt", tmp_path / "run", **{"training.max_steps": 4})
    further = {**first, "training.max_steps": 6, "run.resume": True}
    loss, steps, text = json.loads(run_code(WITHOUT + TRAIN, first, further))
    assert 0 < loss < 6
    assert steps == 6
    assert text.startswith("the ")
    assert (tmp_path / "run" / "checkpoints" / "last").read_text() == "step-00000006"


def test_reading_at_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    with open(tmp_path / "a", "rb", buffering=0) as file:
        usual = [read_at(file, 3, place) for place in (0, 4, 8, 20)]
        monkeypatch.delattr(os, "pread")
        assert [read_at(file, 3, place) for place in (0, 4, 8, 20)] == usual == [b"012", b"456", b"89", b""]


def test_names_lead_to_folders_where_links_are_not_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "last"
    assert pointed_to(place) is None
    point_to(place, "one")
    assert place.is_symlink()
    assert pointed_to(place) == "one"

    def refuse(*_: object, **__: object) -> None:
        problem = OSError(22, "A required privilege is not held by the client")
        problem.winerror = 1314  # type: ignore[attr-defined]
        raise problem

    monkeypatch.setattr(os, "symlink", refuse)
    point_to(place, "two")
    assert not place.is_symlink()
    assert pointed_to(place) == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
