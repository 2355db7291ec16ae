"""Files that are whole or not there: atomic writes, checksums, and JSON that knows when it was damaged."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import socket
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from headrace.errors import CacheError, HeadraceError

CHECKSUM_BLOCK_BYTES = 1 << 20


def digest(*parts: bytes | str) -> str:
    """A 160-bit content hash; parts are length-prefixed, so ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.blake2b(digest_size=20)
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()


def block_checksums(data: memoryview) -> list[int]:
    """A CRC-32 for each MiB, so that damage is not only noticed but located."""
    return [
        zlib.crc32(data[start : start + CHECKSUM_BLOCK_BYTES]) for start in range(0, len(data), CHECKSUM_BLOCK_BYTES)
    ]


def user_cache() -> Path:
    """Where headrace keeps what it can make again: $HEADRACE_CACHE, or headrace in the user's cache folder."""
    own = os.environ.get("HEADRACE_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "headrace"


def canonical_json(value: Any) -> str:
    """One spelling per value, so that equal values have equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def write_checked_json(path: Path, value: dict[str, Any], temporary: Path | None = None) -> None:
    """Write a JSON object together with its own checksum, atomically."""
    write_atomically(path, canonical_json({**value, "checksum": digest(canonical_json(value))}).encode(), temporary)


def read_checked_json(path: Path) -> dict[str, Any]:
    """Read what `write_checked_json` wrote; damage is an error that names the file."""
    try:
        value = json.loads(path.read_bytes())
        stored = value.pop("checksum")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as problem:
        raise CacheError(
            f"{path}: not a headrace file, or damaged ({problem}). Delete it and run `headrace prepare` again."
        ) from None
    if stored != digest(canonical_json(value)):
        raise CacheError(f"{path}: its contents do not match its checksum. Delete it and run `headrace prepare` again.")
    return dict(value)


def write_atomically(path: Path, data: bytes, temporary: Path | None = None) -> None:
    """Temporary file, fsync, rename: readers see the old file or the whole new one, never a part."""
    temporary = temporary or path.with_name(f"{owner_tag()}~{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise writing_failed(path, problem) from problem


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder in which something that is written in place leads elsewhere: nothing outside may change."""
    for name in names:
        if (folder / name).is_symlink():
            raise HeadraceError(
                f"{folder / name}: is a link. headrace changes nothing outside {folder}: put what it leads to in its"
                " place, or make the whole folder a link."
            )


def sync_directory(path: Path) -> None:
    """Make renames in this directory survive a power cut (a no-op where directories cannot be opened)."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_ANOTHER_PLACE = "Or choose another place: data.cache_dir=FOLDER for tokens, --out for anything else."


def writing_failed(path: Path, problem: OSError) -> CacheError:
    """The error for a person whose disk is full, read-only or not theirs."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return CacheError(
            f"{path}: the disk is full. Free some space and run the same command again: what is sealed already is"
            f" kept. {_ANOTHER_PLACE}"
        )
    if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return CacheError(f"{path}: cannot be written ({problem.strerror}). {_ANOTHER_PLACE}")
    return CacheError(f"{path}: cannot be written ({problem.strerror or problem}).")


def owner_tag() -> str:
    """Names a temporary file after its process, so that a later start can tell a leftover from work in progress."""
    return f"{socket.gethostname()}+{os.getpid()}+{_created(os.getpid())}~{threading.get_ident()}"


@functools.cache
def _created(pid: int) -> str:
    return f"{psutil.Process(pid).create_time():.2f}"


def owner_is_gone(tag: str) -> bool:
    """Whether the process behind an `owner_tag` has ended; a tag of another host is left alone."""
    host, pid, created = ["", "", "", *tag.split("~")[0].rsplit("+", 2)][-3:]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" != created
    except psutil.NoSuchProcess:
        return True
