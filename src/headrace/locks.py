"""Locks that the operating system holds for as long as a process lives, and frees when it ends, however it ends.

So nothing has to be guessed from process numbers, host names or times: a lock file that nobody holds means nothing.
Between machines a shared folder must pass locks on, as NFS does unless it is mounted with `nolock`.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

_SUFFIX = ".lock"


def take_lock(path: Path, patience_s: float = 0.0) -> BaseFileLock | None:
    """Take a lock, waiting at most `patience_s`; None if another process, or another holder in this one, keeps it."""
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=patience_s, poll_interval=0.05)
    except Timeout:
        return None
    except NotImplementedError:
        raise OSError(errno.ENOTSUP, "this file system has no locks") from None
    return lock


def is_held(path: Path) -> bool:
    """Return whether a living process holds a lock. It is taken for a moment to find out: others should be patient."""
    if not path.exists():
        return False
    try:
        lock = take_lock(path)
    except OSError:  # a folder that may only be read
        return False
    if lock is not None:
        lock.release()
    return lock is None


class Scratch:
    """A folder for temporary files that nobody sweeps away while its maker lives, and anybody may afterwards.

    >>> with Scratch(Path("cache/tmp")) as folder:          # doctest: +SKIP
    ...     (folder / "half-written").write_bytes(data)
    """

    def __init__(self, parent: Path) -> None:
        while True:
            self.path = parent / secrets.token_hex(8)
            self._lock_path = self.path.with_suffix(_SUFFIX)
            lock = take_lock(self._lock_path)
            # Between its making and its locking somebody may have swept it away; what is both locked and there, stays.
            if lock is not None and self._lock_path.exists():
                break
            if lock is not None:
                lock.release()
        self._lock = lock
        self.path.mkdir()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder with all that is in it. Safe to call more than once."""
        if self._lock.is_locked:
            _remove(self.path, self._lock_path)
            self._lock.release()


def sweep(parent: Path) -> None:
    """Remove everything from a folder of `Scratch`es that does not belong to a living process."""
    for entry in list(parent.iterdir()):
        if entry.suffix == _SUFFIX:
            lock = take_lock(entry)
            if lock is not None:
                _remove(entry.with_suffix(""), entry)
                lock.release()
        elif not entry.with_suffix(_SUFFIX).exists():  # the lock is made before the folder, and removed after it
            _remove(entry, entry)


def _remove(folder: Path, last: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(last):
        last.unlink(missing_ok=True)
