"""The group of processes that train one model together, as one small object; a process alone is a group of one.

Which processes take part is read from the environment that `distributed/launch.py` or torchrun sets. Small values are
exchanged over gloo, whatever gradients are exchanged over.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psutil
import torch
from torch import Tensor

from headrace.distributed.cores import core_group, share_of_cores, stay_on, usable_cores
from headrace.distributed.launch import PINNED, STORE, is_joined
from headrace.errors import TrainingError

Value = TypeVar("Value")
PATIENCE = timedelta(days=7)
"""Timeout for work that only one process does, such as preparing a corpus or writing a checkpoint."""


class Group:
    """A group of one process, which has nobody to wait for; `Joined` is a group of several."""

    rank = 0
    world_size = 1
    local_world_size = 1
    """Number of processes on this machine."""
    machine = 0
    """Number of this process's machine, from 0."""
    num_machines = 1
    is_local_main = True
    """Whether this process is the one that works for all on its machine."""

    @property
    def num_cores(self) -> int:
        """Number of cores that are this process's share."""
        return share_of_cores(1)

    @property
    def is_main(self) -> bool:
        """Whether this process is rank 0, the one that writes files and talks to the user."""
        return self.rank == 0

    def keep_to_own_cores(self) -> None:
        """Pin this process to its share of the cores, if the launcher asks for it."""

    def gather(self, values: list[float], doing: str) -> list[list[float]]:
        """Return the values of every process, by rank. `doing` says what for, in an error."""
        return [values]

    def gather_rows(self, rows: Tensor, doing: str) -> Tensor:
        """Return the rows of every process, by rank, as one tensor; all bring equally many."""
        return rows

    def from_main(self, value: Value, doing: str) -> Value:
        """Return the value that rank 0 passes, which must fit JSON; the others wait for it, however long it takes."""
        return value

    def wait_for_all(self, doing: str) -> None:
        """Wait until every process has come here, however long it takes."""

    @contextmanager
    def exchanging(self, doing: str) -> Iterator[None]:
        """Turn the loss of a process into an error that names it, and what this process was doing."""
        yield

    def close(self) -> None:
        """Leave the group."""


ALONE = Group()


class Joined(Group):
    """A group of several processes, joined by PyTorch: gloo between CPUs, NCCL between GPUs."""

    def __init__(self, timeout_s: float) -> None:
        import torch.distributed

        self._c10d = torch.distributed
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.machine = int(os.environ.get("GROUP_RANK", "0"))
        self.num_machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        self._local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.is_local_main = self._local_rank == 0
        self._num_cores = share_of_cores(self.local_world_size)  # counted before this process is pinned
        self._timeout = timedelta(seconds=timeout_s)
        self._processes: list[list[float]] = []
        if torch.cuda.is_available():
            torch.cuda.set_device(self._local_rank)
        self._join()
        self._quick = self._c10d.new_group(backend="gloo", timeout=self._timeout)
        self._patient = self._c10d.new_group(backend="gloo", timeout=PATIENCE)
        self._processes = self.gather([float(os.getpid()), _host()], "starting")

    @property
    def num_cores(self) -> int:
        return self._num_cores

    def keep_to_own_cores(self) -> None:
        if PINNED in os.environ:
            stay_on(core_group(usable_cores(), self._local_rank, self.local_world_size))

    def _join(self) -> None:
        c10d: Any = self._c10d  # its stubs leave the stores out
        place = os.environ.get(STORE) or f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        try:
            if STORE in os.environ:
                store = c10d.FileStore(place, self.world_size)
                store.set_timeout(self._timeout)
            else:
                store, _, _ = next(c10d.rendezvous("env://", timeout=self._timeout))
            # torchrun's store outlives a restart, and still has the addresses of the processes before it.
            store = c10d.PrefixStore(f"restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
            c10d.init_process_group(
                backend, timeout=self._timeout, store=store, rank=self.rank, world_size=self.world_size
            )
        except (RuntimeError, ValueError) as problem:  # a port in use, nobody there, a missing variable
            raise TrainingError(
                f"rank {self.rank} of {self.world_size} cannot meet the others at {place}: {_first_line(problem)}."
                " Is the port free, and are all processes started?"
            ) from None

    def gather(self, values: list[float], doing: str) -> list[list[float]]:
        mine = torch.tensor(values, dtype=torch.float64)
        everyones = [torch.empty_like(mine) for _ in range(self.world_size)]
        with self.exchanging(doing):
            self._c10d.all_gather(everyones, mine, group=self._quick)
        return [theirs.tolist() for theirs in everyones]

    def gather_rows(self, rows: Tensor, doing: str) -> Tensor:
        everyones = rows.new_empty(self.world_size * rows.shape[0], *rows.shape[1:])
        with self.exchanging(doing):  # as bytes: gloo does not know every number format
            parts = list(everyones.view(torch.uint8).chunk(self.world_size))
            self._c10d.all_gather(parts, rows.contiguous().view(torch.uint8))
        return everyones

    def from_main(self, value: Value, doing: str) -> Value:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        size = torch.tensor([len(text)])
        with self.exchanging(doing):
            self._c10d.broadcast(size, 0, group=self._patient)
            if not self.is_main:
                text = torch.empty(int(size), dtype=torch.uint8)
            self._c10d.broadcast(text, 0, group=self._patient)
        return json.loads(bytes(text.tolist()))  # type: ignore[no-any-return]

    def wait_for_all(self, doing: str) -> None:
        with self.exchanging(doing):
            self._c10d.barrier(group=self._patient)

    @contextmanager
    def exchanging(self, doing: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as problem:  # gloo has no exception of its own
            if not isinstance(problem, self._c10d.DistError) and "gloo" not in str(problem):
                raise
            raise TrainingError(
                f"rank {self.rank} of {self.world_size} lost {self._missing()} while {doing}:"
                f" {_first_line(problem)}. Start again with run.resume=auto to continue from the last checkpoint."
            ) from None

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._c10d.destroy_process_group()

    def _missing(self) -> str:
        """Name the lost processes, as far as they ran on this machine: of others nothing is known."""
        gone = [
            f"rank {rank} (process {int(pid)}, which has ended)"
            for rank, (pid, host) in enumerate(self._processes)
            if host == _host() and _has_ended(int(pid))
        ]
        return ", ".join(gone) or "another rank (it hangs, or it is on another machine)"


def join(timeout_s: float) -> Group:
    """Join the group that the environment describes; without one, this process is alone."""
    return Joined(timeout_s) if is_joined() else ALONE


def _host() -> float:
    """Return a number for this machine's name, since only numbers are gathered."""
    return float(zlib.crc32(platform.node().encode()))


def _has_ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _first_line(problem: Exception) -> str:
    """Return what happened, without the place in PyTorch's source before it and the advice after it."""
    line = str(problem).strip().split("\n")[0]
    return re.sub(r"\[/[^]]*\] ", "", line).partition(". ")[0].rstrip(".")
