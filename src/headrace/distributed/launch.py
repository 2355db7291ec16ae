"""Launching a group of processes on this machine: started together, watched, and never left behind.

They meet in a file that only this user can read (PyTorch's FileStore), and gloo joins them over the loopback interface:
no port is open to other machines, and nothing is read that another user could have written.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import EXIT_STOPPED, TrainingError
from headrace.machine.children import Child, when_orphaned
from headrace.machine.signals import on_stop_signals

PINNED = "HEADRACE_PINNED"
"""Environment variable that asks each process to pin itself to its share of the cores."""
STORE = "HEADRACE_STORE"
"""Environment variable with the file in which the processes meet; without it they meet where torchrun says."""
WATCHED = "HEADRACE_WATCHED"
"""Environment variable that says that standard input is a pipe which closes when the launcher ends."""
POLL_S = 0.05
PATIENCE_S = 5.0
"""Seconds in which the others may end by themselves, and say why, after one process has failed."""
SAVING_S = 30.0
"""Seconds from SIGTERM to SIGKILL, once one process has failed."""


class Processes:
    """The same command in several processes, each with its rank in the environment, as torchrun would set it.

    >>> with Processes([sys.executable, "-c", "import os; exit(int(os.environ['RANK']))"], 2) as processes:
    ...     processes.wait()
    (1, 1)
    """

    def __init__(
        self,
        command: Sequence[str],
        number: int,
        environment: Mapping[str, str] | None = None,
        question: Any = None,
    ) -> None:
        """`question`: sent to every process (machine/children.py); `answers` returns their answers."""
        self._command, self._number, self._question = list(command), number, question
        self._environment = {**os.environ, **(environment or {})}
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-group-")  # mode 0700
        self._started: list[Child] = []
        self.is_stopping = False

    def __enter__(self) -> Processes:
        is_asked = self._question is not None
        for rank in range(self._number):
            if self.is_stopping:
                break
            variables = {**self._environment, **self._variables(rank)}
            # In this session: a Ctrl-C or Ctrl-Z of the terminal is meant for them, too.
            self._started.append(Child(self._command, variables, is_asked=is_asked, own_session=False))
        if self.is_stopping:  # asked while one of them was being made
            self._send(signal.SIGTERM)
        for process in self._started if is_asked else ():
            process.tell(self._question)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
        for process in self._started:
            process.end()
        self._folder.cleanup()

    @property
    def is_complete(self) -> bool:
        """Whether all processes were started."""
        return len(self._started) == self._number

    def stop(self) -> None:
        """Ask all processes to save and end, and start no more of them. Safe in a signal handler."""
        self.is_stopping = True
        self._send(signal.SIGTERM)

    def wait(self, timeout_s: float | None = None) -> tuple[int, int] | None:
        """Wait until all have ended. Return the rank and exit code of the first that failed, None if all went well.

        Raises TimeoutError if they are not done in time.
        """
        began_s = time.monotonic()
        first: tuple[int, int] | None = None
        failed_s = 0.0
        is_asked = False
        while any(process.exit_code is None for process in self._started):
            time.sleep(POLL_S)
            now_s = time.monotonic()
            if timeout_s is not None and now_s - began_s > timeout_s:
                raise TimeoutError
            if first is None:
                first, failed_s = self._failure(), now_s
            elif not is_asked and now_s - failed_s > PATIENCE_S:
                self._send(signal.SIGTERM)
                is_asked = True
            elif now_s - failed_s > PATIENCE_S + SAVING_S:
                for process in self._started:
                    process.kill()
        return first or self._failure()

    def answers(self, timeout_s: float | None = None) -> list[Any]:
        """Wait until all have ended, and return their answers by rank.

        Raises ChildError with what the first that failed has said, and TimeoutError if they are not done in time.
        """
        failure = self.wait(timeout_s)
        if failure is not None:
            self._started[failure[0]].answer()
        return [process.answer() for process in self._started]

    def _failure(self) -> tuple[int, int] | None:
        """Return the rank and exit code of the process to blame: a killed one, if any, because others fail after it."""
        codes = {rank: process.exit_code for rank, process in enumerate(self._started)}
        failed = [(rank, code) for rank, code in codes.items() if code]
        return min(failed, key=lambda found: found[1], default=None)

    def _send(self, number: int) -> None:
        for process in self._started:
            process.send(number)

    def _variables(self, rank: int) -> dict[str, str]:
        size = str(self._number)
        loopback = _loopback_interface()
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "OMP_NUM_THREADS": self._environment.get("OMP_NUM_THREADS", "1"),  # torch sets its own, but warns without
            "GLOO_SOCKET_IFNAME": loopback,  # also where a cluster's profile says otherwise
            "NCCL_SOCKET_IFNAME": loopback,
            STORE: os.path.join(self._folder.name, "store"),
            WATCHED: "1",
        }


def is_joined() -> bool:
    """Return whether this process was started as one of several, by `Processes`, torchrun or the like."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def end_with_starter() -> None:
    """Have this process, if `Processes` started it, stop as if by SIGTERM when the launcher is gone."""
    if WATCHED in os.environ:
        when_orphaned(end_orphan)


def end_orphan() -> None:
    """Remove the folder in which the group met, which nobody else will, and ask this process to save and end."""
    shutil.rmtree(os.path.dirname(os.environ[STORE]), ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _loopback_interface() -> str:
    import psutil  # here, because every command imports this module

    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return str(name)
    return "lo0" if sys.platform == "darwin" else "lo"


def launch(num_processes: int, arguments: Sequence[str]) -> int:
    """Run `headrace ARGUMENTS` in several processes, each on its own cores; return the first failure's exit code."""
    ranks = Processes([sys.executable, "-m", "headrace", *arguments], num_processes, {PINNED: "1"})
    on_stop_signals(ranks.stop)  # before they exist, so that a signal during the start is not lost
    with ranks:
        failure = ranks.wait()
    if failure is None:
        return 0 if ranks.is_complete else EXIT_STOPPED
    rank, code = failure
    if code >= 0:
        return code
    if ranks.is_stopping and code == -signal.SIGTERM:  # it did not handle signals itself yet
        return EXIT_STOPPED
    raise TrainingError(f"rank {rank} was ended by {signal.Signals(-code).name}. Continue it with run.resume=auto.")
