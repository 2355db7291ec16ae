"""Child processes answer, say what they died of, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headrace.errors import ChildError
from headrace.machine.children import Child

ANSWERING = "from headrace.machine.children import answer_questions\n"
# Forks a process that sleeps, writes both process ids to a file, and answers.
PARENT_OF_ONE = f"""
import os, subprocess, sys
{ANSWERING}
def answer(path):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(path + ".part", "w") as file:
        file.write(f"{{os.getpid()}} {{sleeper.pid}}")
    os.rename(path + ".part", path)
    return [os.getpid(), sleeper.pid]
answer_questions(answer)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wait_until_gone(pids: list[int], seconds: float = 20.0) -> list[int]:
    """Return those that are still running after a while, and end them."""
    running = [pid for pid in pids if psutil.pid_exists(pid)]
    deadline = time.monotonic() + seconds
    while running and time.monotonic() < deadline:
        time.sleep(0.02)
        running = [pid for pid in running if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return running


def test_questions_are_answered_whatever_else_is_printed() -> None:
    code = (
        f"{ANSWERING}import os\ndef answer(n):\n    print('noise'); os.system('echo noise'); return {{'next': n + 1}}\n"
    )
    with Child(python(code + "answer_questions(answer)")) as child:
        assert [child.ask(number) for number in (1, 5)] == [{"next": 2}, {"next": 6}]
        assert child.exit_code is None


def test_a_child_may_answer_once_and_end() -> None:
    with Child(python(f"{ANSWERING}answer_questions(abs, count=1)")) as child:
        child.tell(-3)
        while child.exit_code is None:
            time.sleep(0.01)
        assert child.exit_code == 0
        assert child.answer() == 3
        with pytest.raises(ChildError, match="ended with exit code 0"):
            child.answer()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise OSError('the third batch is gone')", "^OSError: the third batch is gone$"),
        ("raise HeadraceError('corpus.txt: no such file')", r"^corpus\.txt: no such file$"),
        ("sys.exit('enough\\n')", "^enough$"),
        ("os._exit(7)", "^ended with exit code 7$"),
        ("os.kill(os.getpid(), 9)", "^killed by SIGKILL, perhaps for want of memory$"),
    ],
)
def test_a_child_that_fails_or_dies_says_why(statement: str, message: str) -> None:
    code = f"{ANSWERING}import os, sys\nfrom headrace.errors import HeadraceError\ndef answer(_):\n    {statement}\n"
    with Child(python(code + "answer_questions(answer)")) as child, pytest.raises(ChildError, match=message):
        child.ask(None)


def test_a_command_that_never_listens_is_an_error_and_not_a_hang() -> None:
    with Child(["/bin/false"]) as child, pytest.raises(ChildError, match="ended with exit code 1"):
        child.ask("x" * (1 << 20))


def test_what_a_child_has_started_ends_with_it(tmp_path: Path) -> None:
    with Child(python(PARENT_OF_ONE)) as child:
        pids = child.ask(str(tmp_path / "pids"))
    assert wait_until_gone(pids) == []


# Answers after its parent is gone, before the thread that notices this has acted.
LATE_PARENT_OF_ONE = PARENT_OF_ONE.replace("    return", "    import time; time.sleep(0.3); return").replace(
    "(answer)\n", "(answer, on_orphaned=lambda: [__import__('time').sleep(1), os.killpg(0, 9)])\n"
)


@pytest.mark.parametrize("parent_of_one", [PARENT_OF_ONE, LATE_PARENT_OF_ONE], ids=["at once", "answering late"])
def test_an_orphan_ends_with_what_it_has_started(tmp_path: Path, parent_of_one: str) -> None:
    path = tmp_path / "pids"
    code = f"""
import sys
from headrace.machine.children import Child
with Child([sys.executable, "-c", {parent_of_one!r}]) as child:
    child.ask({str(path)!r})
    child.answer()
"""
    with subprocess.Popen(python(code)) as parent:
        while not path.exists():
            assert parent.poll() is None
            time.sleep(0.02)
        parent.kill()
    assert wait_until_gone([int(pid) for pid in path.read_text().split()]) == []
