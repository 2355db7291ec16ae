"""headrace without the calls that only Linux has: they are removed in a process, which then trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.files import point_to, pointed_to, read_at
from tests.conftest import make_text
from tests.run.tiny_run import settings

WITHOUT = """
import os, signal, sys, warnings
import filelock, psutil, tokenizers, torch

warnings.filterwarnings("error", category=EncodingWarning, module="headrace")  # text that only Windows misreads

for name in (
    "pread pwrite fork forkpty sched_getaffinity sched_setaffinity posix_fadvise killpg getuid geteuid setsid getpgid"
    " mkfifo posix_spawn getloadavg preadv pwritev posix_fallocate uname nice wait3 wait4 getgroups openpty"
).split():
    vars(os).pop(name, None)
for name in (
    "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGPIPE SIGTSTP alarm setitimer pthread_sigmask pthread_kill"
    " sigwait"
).split():
    vars(signal).pop(name, None)
def refuse(*_, **__):
    problem = OSError(22, "A required privilege is not held by the client")
    problem.winerror = 1314
    raise problem
os.symlink = refuse
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
"""
"""Removes what Windows lacks before headrace is imported, and after the libraries that do without it by themselves."""
COMMANDS = """
import json, sys
from headrace.cli.main import main

for command in json.loads(sys.argv[1]):
    print(command, file=sys.stderr)
    sys.argv = ["headrace", *command]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, command
print(json.dumps("done"))
"""


def run_code(code: str, *arguments: object) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    python = [sys.executable, "-X", "warn_default_encoding"]
    command = [*python, "-c", code, *(json.dumps(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_model_is_trained_resumed_and_used_without_calls_of_linux(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000), encoding="utf-8")
    run = tmp_path / "run"
    values = settings(tmp_path / "a.txt", run, **{"training.max_steps": 4, "run.trackers": "tensorboard"})
    commands = [
        ["prepare", str(tmp_path / "a.txt"), "--tokenizer", "byte", "--out", str(tmp_path / "cache")],
        ["inspect", str(tmp_path / "cache"), "--step", "0"],
        ["train", *(f"{key}={json.dumps(value)}" for key, value in values.items())],
        ["train", "--resume", str(run), "training.max_steps=6"],
        ["generate", str(run), "--prompt", "the ", "--max-tokens", "5"],
        ["report", str(run)],
        *([["export", str(run), "--gguf"]] if find_spec("gguf") else []),
    ]
    assert json.loads(run_code(WITHOUT + COMMANDS, commands)) == "done"
    summary = json.loads((run / "summary.json").read_text())
    assert 0 < summary["validation_loss"] < 6
    assert summary["steps"] == 6
    assert (run / "checkpoints" / "last").read_text() == "step-00000006"


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
