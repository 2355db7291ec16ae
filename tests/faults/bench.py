"""The workbench of a fault: a folder of its own, a small corpus, and headrace as a command in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import make_text
from tests.run.tiny_run import TINY

LONGEST_S = 120.0


class NotHereError(Exception):
    """This machine or user cannot do the fault; the message says why."""


TINY_RUN = {**TINY, "training.max_steps": 40, "training.evaluate_every": 10, "training.save_every": 5}


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def result(self) -> dict[str, Any]:
        """The JSON object that `--json` prints last."""
        return dict(json.loads(self.stdout.strip().splitlines()[-1]))

    def expect(self, code: int, *words: str) -> Outcome:
        """Check the exit code, that all words were said, and that nothing looks like a bug of ours."""
        said = self.stdout + self.stderr
        assert self.code == code, f"exit code {self.code} instead of {code}: {self._tail}"
        assert "Traceback" not in said, f"a traceback: {self._tail}"
        for word in words:
            assert word in said, f"nothing said about {word!r}: {self._tail}"
        return self

    @property
    def _tail(self) -> str:
        return " | ".join((self.stdout + self.stderr).strip().splitlines()[-3:])[-300:]


class Workbench:
    """A folder of its own for one fault, and the processes that were started for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpus = folder / "corpus.txt"
        self.corpus.write_text(make_text(60_000), encoding="utf-8")
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: object, environment: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start `headrace ARGUMENTS` and go on."""
        own = {"HEADRACE_CACHE": str(self.folder / "user-cache"), "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, **own, **(environment or {})},
            text=True,
            errors="replace",
            **{**pipes, **options},
        )
        self._started.append(process)
        return process

    def run(self, *arguments: object, **options: Any) -> Outcome:
        """Run `headrace ARGUMENTS` to its end."""
        return self.end(self.start(*arguments, **options))

    def end(self, process: subprocess.Popen[str], seconds: float = LONGEST_S) -> Outcome:
        """Wait for a command to end by itself."""
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:.0f} s") from None
        return Outcome(process.returncode, stdout or "", stderr or "")

    def training(self, out: str = "run", **changes: object) -> list[object]:
        """Arguments of a training run that takes a moment and is the same every time."""
        keys = {**TINY_RUN, **{name.replace("__", "."): value for name, value in changes.items()}}
        return [
            "train",
            self.corpus,
            "--out",
            self.folder / out,
            "--json",
            *(f"{key}={value}" for key, value in keys.items()),
        ]

    def wait_for(self, is_there: Callable[[], bool], process: subprocess.Popen[str], what: str) -> None:
        """Wait until something that a running command does can be seen."""
        deadline = time.monotonic() + LONGEST_S
        while not is_there():
            assert process.poll() is None, f"ended before {what}"
            assert time.monotonic() < deadline, f"{what}: not seen"
            time.sleep(0.01)

    def wait_for_step(self, step: int, process: subprocess.Popen[str], out: str = "run") -> None:
        """Wait until a run has written the metrics of a step."""
        metrics = self.folder / out / "metrics.jsonl"
        self.wait_for(
            lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) >= step, process, f"step {step}"
        )

    def weights(self, out: str = "run") -> bytes:
        """The weights of a run's last checkpoint."""
        return (self.folder / out / "checkpoints" / "last" / "model.safetensors").read_bytes()

    def close(self) -> None:
        """End whatever is left of the commands and of what they started."""
        for process in self._started:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.send_signal(signal.SIGKILL)
                process.kill()
                process.communicate()


Case = Callable[[Workbench], None]
CASES: list[tuple[str, str, Case]] = []


def fault(kind: str, what: str) -> Callable[[Case], Case]:
    """Add a case to the table: its kind of fault, and what is done and expected, in words."""

    def register(case: Case) -> Case:
        CASES.append((kind, what, case))
        return case

    return register
