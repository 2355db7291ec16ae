"""Files that are whole or not there: atomic writes, checksums, and JSON that knows when it was damaged."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import CacheError, HeadraceError

CHECKSUM_BLOCK_BYTES = 1 << 20
_WINDOWS_NOT_PRIVILEGED = 1314
_LONGEST_NAME = 255


def digest(*parts: bytes | str) -> str:
    """Return a 160-bit content hash; parts are length-prefixed, so ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.blake2b(digest_size=20)
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()


def block_checksums(data: memoryview) -> list[int]:
    """Return a CRC-32 for each MiB, so that damage is not only noticed but located."""
    return [
        zlib.crc32(data[start : start + CHECKSUM_BLOCK_BYTES]) for start in range(0, len(data), CHECKSUM_BLOCK_BYTES)
    ]


def user_cache() -> Path:
    """Return the folder for what can be made again: $HEADRACE_CACHE, or `headrace` in the user's cache folder."""
    own = os.environ.get("HEADRACE_CACHE")
    return Path(own or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "headrace").expanduser()


def canonical_json(value: Any) -> str:
    """Return the one spelling of a value as JSON, so that equal values have equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def without_nan(value: Any) -> Any:
    """Return the same value with null for numbers that JSON does not have: NaN and the infinities.

    >>> without_nan({"loss": float("nan"), "seconds": [1.5, float("inf")]})
    {'loss': None, 'seconds': [1.5, None]}
    """
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_checked_json(path: Path, value: dict[str, Any], temporary: Path | None = None) -> None:
    """Write a JSON object together with its own checksum, atomically."""
    write_atomically(path, canonical_json({**value, "checksum": digest(canonical_json(value))}).encode(), temporary)


def read_checked_json(
    path: Path,
    error: type[HeadraceError] = CacheError,
    remedy: str = " Delete it and run `headrace prepare` again.",
) -> dict[str, Any]:
    """Read what `write_checked_json` wrote; damage is an error that names the file and what to do about it."""
    try:
        value = json.loads(path.read_bytes())
        stored = value.pop("checksum")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as problem:
        raise error(f"{path}: not a headrace file, or damaged ({problem}).{remedy}") from None
    except PermissionError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror}).") from None
    if stored != digest(canonical_json(value)):
        raise error(f"{path}: its contents do not match its checksum.{remedy}")
    return dict(value)


def write_atomically(path: Path, data: bytes, temporary: Path | None = None) -> None:
    """Write a file by way of a synced temporary one: readers see the old file or the whole new one, never a part."""
    temporary = temporary or temporary_beside(path)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as problem:
        with contextlib.suppress(OSError):  # on a read-only disk, removing fails even if the file does not exist
            temporary.unlink()
        raise writing_failed(path, problem) from problem


def read_at(file: BinaryIO, size: int, place: int) -> bytes:
    """Read bytes at a place of an open file that no other thread uses: Windows, which has no `pread`, seeks there."""
    if hasattr(os, "pread"):
        return os.pread(file.fileno(), size, place)
    file.seek(place)
    return file.read(size)


def make_link(place: Path, target: str) -> bool:
    """Make, or make anew, a link to a folder beside it. Return False where links are not allowed.

    Windows allows them only to administrators and in its developer mode.
    """
    temporary = temporary_beside(place)
    try:
        temporary.symlink_to(target, target_is_directory=True)
    except NotImplementedError:
        return False
    except OSError as problem:
        if getattr(problem, "winerror", None) == _WINDOWS_NOT_PRIVILEGED:
            return False
        raise
    if os.name == "nt" and place.is_symlink():
        place.rmdir()  # there, a link to a folder is a folder, which nothing can replace
    os.replace(temporary, place)
    return True


def point_to(place: Path, target: str) -> None:
    """Make a name lead to a folder beside it: by a link, or where none is allowed by a file that holds the name."""
    if not make_link(place, target):
        write_atomically(place, target.encode())


def pointed_to(place: Path) -> str | None:
    """Return the name that `point_to` made a place lead to; None where it made none."""
    if place.is_symlink():
        return os.readlink(place)
    return place.read_text(encoding="utf-8", errors="replace")[:_LONGEST_NAME] if place.is_file() else None


def resolved_here(path: Path) -> Path:
    """Return where a path leads when all links are followed, relative to the current folder if it lies below it."""
    whole, here = path.resolve(), Path.cwd().resolve()
    return whole.relative_to(here) if here in whole.parents else whole


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder in which one of these names is a link: writing through it would change something outside."""
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


_ANOTHER_PLACE = "choose another place: data.cache_dir=FOLDER for tokens, --out for anything else."


def writing_failed(path: Path, problem: OSError) -> CacheError:
    """Return the error for a failed write, which tells the user what to do about a full or read-only disk."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return CacheError(
            f"{path}: the disk is full. Free some space and run the same command again: what is sealed already is"
            f" kept. Or {_ANOTHER_PLACE}"
        )
    if problem.errno == errno.EFBIG:
        return CacheError(f"{path}: would be larger than a file may be here. Raise the limit (`ulimit -f unlimited`).")
    if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return CacheError(f"{path}: cannot be written ({problem.strerror}). Please {_ANOTHER_PLACE}")
    return CacheError(f"{path}: cannot be written ({problem.strerror or problem}).")


def temporary_beside(path: Path) -> Path:
    """Return a name that no other process uses, for what will be moved to `path` when it is whole."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
