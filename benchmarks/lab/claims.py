"""Claims: which process works on a cell, told by files in a folder that several machines may share.

The claim with the highest number holds. A claim is taken by creating the next number, which a file system lets only one
process do; so two processes that find the same stale claim cannot both take over. A holder touches its file every few
seconds. A claim is stale when it has not been touched for two minutes by the file server's own clock, or at once when
it was made on this host by a process that is gone. File locks would need no times, but not every shared folder passes
them on.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

RENEW_S = 5.0
STALE_S = 120.0


class Claim:
    """A cell that this process holds, until it is released.

    `on_lost` is called when another process has taken over, because this one slept too long.
    """

    def __init__(self, file: Path, on_lost: Callable[[], None]) -> None:
        self._file, self._on_lost = file, on_lost
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lab-claim", daemon=True)
        self._thread.start()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let others have the cell."""
        self._ended.set()
        self._thread.join()
        self._file.unlink(missing_ok=True)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            with suppress(OSError):  # a server that is away for a moment
                if _newest(self._file.parent) != self._file:
                    self._on_lost()
                    return
                os.utime(self._file)


def take(folder: Path, on_lost: Callable[[], None] = lambda: None) -> Claim | None:
    """Claim the cell of this folder; None if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    newest = _newest(folder)
    if newest is not None and not is_stale(newest):
        return None
    number = _number(newest) + 1 if newest is not None else 1
    file = folder / f"claim-{number:04d}"
    try:
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return None
    with open(handle, "w") as writing:
        json.dump(_myself(), writing)
    if _newest(folder) != file:  # this process slept between looking and creating
        file.unlink(missing_ok=True)
        return None
    return Claim(file, on_lost)


def holder(folder: Path) -> str:
    """Return who works on the cell of this folder, for people; empty if nobody does."""
    newest = _newest(folder)
    if newest is None or is_stale(newest):
        return ""
    owner = _read(newest)
    return f"{owner.get('host', 'unknown host')}, process {owner.get('process', 'unknown')}"


def is_stale(file: Path) -> bool:
    """Return whether the process that made a claim is gone."""
    owner = _read(file)
    if owner.get("host") == socket.gethostname() and "process" in owner and not _lives(owner):
        return True
    try:
        return _server_time(file.parent) - file.stat().st_mtime > STALE_S
    except FileNotFoundError:  # released this moment
        return True


def _server_time(folder: Path) -> float:
    """Return the time by the clock that stamps files in this folder: clocks of machines differ."""
    probe = folder / f"clock-{socket.gethostname()}-{os.getpid()}"
    try:
        probe.write_bytes(b"")
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with suppress(OSError):
            probe.unlink()


def _newest(folder: Path) -> Path | None:
    return max(folder.glob("claim-*"), key=_number, default=None)


def _number(file: Path) -> int:
    return int(file.name.rpartition("-")[2])


def _myself() -> dict[str, Any]:
    return {"host": socket.gethostname(), "process": os.getpid(), "started": psutil.Process().create_time()}


def _lives(owner: dict[str, Any]) -> bool:
    try:
        return bool(abs(psutil.Process(owner["process"]).create_time() - owner.get("started", 0.0)) < 1.0)
    except psutil.Error:
        return False


def _read(file: Path) -> dict[str, Any]:
    """Read who made a claim; nothing is known while its file is being written."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
