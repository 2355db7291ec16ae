"""Processes of a group: a request to stop is never lost, nobody is left behind, and whoever failed first is named."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.distributed import launch
from headrace.distributed.launch import STORE, Processes
from headrace.errors import EXIT_STOPPED, TrainingError
from headrace.machine import children

SLEEPING = [sys.executable, "-c", "import time; time.sleep(600)"]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture(autouse=True)
def own_signals() -> Any:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_they_meet_in_a_folder_of_their_own(tmp_path: Path) -> None:
    code = f"import os; open('{tmp_path}/' + os.environ['RANK'], 'w').write(os.environ['{STORE}']); "
    code += "import stat; assert stat.S_IMODE(os.stat(os.path.dirname(os.environ['HEADRACE_STORE'])).st_mode) == 0o700"
    with Processes(python(code), 2) as processes:
        assert processes.wait() is None
    stores = {(tmp_path / rank).read_text() for rank in "01"}
    assert len(stores) == 1
    assert not os.path.exists(os.path.dirname(stores.pop()))


def test_who_was_killed_failed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PATIENCE_S", 0.1)
    code = (
        "import os, signal, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL); time.sleep(600)"
    )
    with Processes(python(code), 3) as processes:
        assert processes.wait() == (1, -signal.SIGKILL)


def test_they_are_ended_where_there_is_no_sigkill(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where `Popen.kill` needs none."""
    number = signal.SIGKILL
    monkeypatch.setattr(launch, "PATIENCE_S", 0.1)
    monkeypatch.setattr(launch, "SAVING_S", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: os.kill(process.pid, number))
    monkeypatch.delattr(signal, "SIGKILL")
    code = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    code += "os.environ['RANK'] == '1' and sys.exit(7); time.sleep(600)"
    with Processes(python(code), 2) as processes:
        assert processes.wait() == (1, 7)


def test_a_signal_before_there_are_processes_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(SLEEPING, **options))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(children.subprocess, "Popen", interrupted)
    assert launch.launch(3, []) == EXIT_STOPPED
    assert [process.returncode for process in started] == [-signal.SIGTERM]


def test_a_signal_before_the_first_process_starts_none() -> None:
    processes = Processes(SLEEPING, 2)
    processes.stop()
    with processes:
        assert processes.wait() is None
        assert not processes.is_complete


def test_a_rank_that_somebody_kills_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    monkeypatch.setattr(launch, "PATIENCE_S", 0.1)

    class Killed(Processes):
        def __init__(self, _command: list[str], *options: Any) -> None:
            super().__init__(["/bin/sh", "-c", "kill -9 $$"], *options)

    monkeypatch.setattr(launch, "Processes", Killed)
    with pytest.raises(TrainingError, match=r"rank \d was ended by SIGKILL"):
        launch.launch(2, [])


def test_nobody_outlives_who_started_them(tmp_path: Path) -> None:
    """Killed by SIGKILL, the starter can do nothing any more; and the processes get SIGTERM, so that they can save."""
    worker = f"""
import os, signal, sys, time
from headrace.distributed.launch import end_with_starter
def save(*_):
    open("{tmp_path}/saved-" + os.environ["RANK"], "w").close()
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
end_with_starter()
open("{tmp_path}/pid-" + os.environ["RANK"], "w").write(f"{{os.getpid()}} {{os.environ['HEADRACE_STORE']}}")
time.sleep(600)
"""
    code = f"""
import sys
from headrace.distributed.launch import Processes
with Processes([sys.executable, "-c", {worker!r}], 2) as processes:
    processes.wait()
"""
    with subprocess.Popen(python(code)) as starter:
        pids = []
        for rank in "01":
            path = tmp_path / f"pid-{rank}"
            while not path.exists() or not path.read_text():
                assert starter.poll() is None
                time.sleep(0.02)
            pid, store = path.read_text().split()
            pids.append(int(pid))
        starter.kill()
    members = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            members.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(members, timeout=20)
    for member in alive:
        member.kill()
    assert alive == []
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-0", "saved-1"}
    assert not Path(store).parent.exists()
