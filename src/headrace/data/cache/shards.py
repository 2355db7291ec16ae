"""Shards: the tokens of one chunk on disk, named by what they were made from.

    shards/KEY.tokens   raw little-endian uint16 or uint32, end-of-text after every document
    shards/KEY.ends     uint64: where each document ends (after its end-of-text)
    shards/KEY.json     written last: counts, checksums, files; a shard without it does not exist
    tmp/                what is being written: a locked folder each, see locks.py

KEY is a hash of the tokenizer, the way of reading and the raw bytes. So a shard never needs to be invalidated: a
changed file has another key; a killed build finds what it had finished; two builders at once write the same bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data.selection.folder import FOLDER as DOCUMENTS
from headrace.errors import CacheError
from headrace.files import (
    CHECKSUM_BLOCK_BYTES,
    block_checksums,
    read_checked_json,
    refuse_links,
    writing_failed,
)
from headrace.locks import Scratch, sweep

TokenArray = npt.NDArray[Any]
MAX_MAPPED = 4096
KEY = re.compile(r"[0-9a-f]{40}")
PARTS_KEY = "members"
"""The key of the list of parts in a seal: a name that existing caches have."""


class DamagedShardError(CacheError):
    """A shard that is not what was written."""


@dataclass(frozen=True, slots=True)
class PartInfo:
    """One file's part of a shard."""

    name: str
    digest: str
    num_documents: int
    """Documents that end in it."""
    num_tokens: int
    is_open: bool
    """Whether its last document continues in the next shard."""
    noticed: dict[str, int]

    def to_json(self) -> list[Any]:
        """Return the part as a seal lists it."""
        return [self.name, self.digest, self.num_documents, self.num_tokens, self.is_open, self.noticed]


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard as the manifest lists it."""

    key: str
    num_tokens: int
    num_documents: int
    """Documents that end here."""
    token_checksums: tuple[int, ...]
    end_checksums: tuple[int, ...]

    def to_json(self) -> list[Any]:
        """Return the shard as files list it."""
        return [self.key, self.num_tokens, self.num_documents, self.token_checksums, self.end_checksums]

    @classmethod
    def from_json(cls, value: list[Any]) -> ShardInfo:
        """Read what a file says of a shard, checked: its key becomes the name of files, and its counts their sizes."""
        key, num_tokens, num_documents, token_checksums, end_checksums = value
        check_key(key)
        if not all(type(count) is int and count >= 0 for count in (num_tokens, num_documents)):
            raise ValueError(f"shard {key} has counts that are not whole numbers")
        return cls(key, num_tokens, num_documents, tuple(token_checksums), tuple(end_checksums))


def check_key(key: object) -> None:
    """Refuse a name that no shard can have, before a path is made of it."""
    if not isinstance(key, str) or not KEY.fullmatch(key):
        raise ValueError(f"{key!r:.80} is not the name of a shard")


class ShardFolder:
    """The shards of a cache: written whole, checked when first read, mapped rather than loaded."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path = path / "shards"
        self.dtype = dtype
        self._temporary = path / "tmp"
        self._mapped: OrderedDict[str, TokenArray] = OrderedDict()
        self._checked: set[str] = set()
        self._lock = threading.Lock()

    def refuse_links(self) -> None:
        """Refuse a cache whose folders lead elsewhere."""
        refuse_links(self.path.parent, (self.path.name, self._temporary.name, DOCUMENTS))

    def make(self) -> None:
        """Create the folders, and sweep away what a killed builder left behind."""
        self.refuse_links()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._temporary.mkdir(exist_ok=True)
            sweep(self._temporary)
        except OSError as problem:
            raise writing_failed(self.path, problem) from None

    def find(self, key: str) -> tuple[ShardInfo, Counter[str]] | None:
        """Return a sealed shard and what was noticed when it was made, if its files are all there in full."""
        try:
            seal = read_checked_json(self.path / f"{key}.json")
            info = ShardInfo.from_json(seal["shard"])
            sizes = (os.path.getsize(self._tokens(key)), os.path.getsize(self._ends(key)))
            noticed: Counter[str] = Counter()
            for part in seal[PARTS_KEY]:
                noticed.update(PartInfo(*part).noticed)
        except (CacheError, OSError, KeyError, TypeError, ValueError):
            return None  # missing or damaged: it will be written again
        if info.key != key or sizes != (info.num_tokens * self.dtype.itemsize, info.num_documents * 8):
            return None
        return info, noticed

    def parts(self, key: str) -> list[PartInfo]:
        """Return the files that a shard was made from, with their shares of it."""
        return [PartInfo(*part) for part in read_checked_json(self.path / f"{key}.json")[PARTS_KEY]]

    def tokens(self, info: ShardInfo) -> TokenArray:
        """Return the tokens of a shard, mapped read-only; checked against their checksums the first time."""
        with self._lock:
            array = self._mapped.get(info.key)
            if array is not None:
                self._mapped.move_to_end(info.key)
                return array
        array = self._map_checked(info, ".tokens")
        with self._lock:
            self._checked.add(info.key)
            self._mapped[info.key] = array
            while len(self._mapped) > MAX_MAPPED:
                self._mapped.popitem(last=False)
        return array

    def ends(self, info: ShardInfo) -> npt.NDArray[np.int64]:
        """Return where the documents of a shard end, as token offsets within it."""
        if info.num_documents == 0:
            return np.zeros(0, dtype=np.int64)
        ends = self._map_checked(info, ".ends").astype(np.int64)
        if ends[0] < 0 or ends[-1] > info.num_tokens or (np.diff(ends) < 0).any():
            raise DamagedShardError(f"{self._ends(info.key)}: document ends outside the shard's tokens. {_REPAIR}")
        return ends

    def verify(self, info: ShardInfo) -> list[str]:
        """Return a sentence for each damaged file of a shard."""
        self._checked.discard(info.key)
        problems = []
        for suffix, count in ((".tokens", info.num_tokens), (".ends", info.num_documents)):
            if count == 0:
                continue
            try:
                self._map_checked(info, suffix)
            except CacheError as problem:
                problems.append(str(problem))
        return problems

    def remove(self, key: str) -> None:
        """Delete a shard, its seal first."""
        for path in (self.path / f"{key}.json", self._tokens(key), self._ends(key)):
            path.unlink(missing_ok=True)

    def _map_checked(self, info: ShardInfo, suffix: str) -> npt.NDArray[Any]:
        """Map a file of a shard. If it is damaged, the shard loses its seal, and the next build makes it anew."""
        is_tokens = suffix == ".tokens"
        path = self.path / f"{info.key}{suffix}"
        dtype, count = (self.dtype, info.num_tokens) if is_tokens else (np.dtype("<u8"), info.num_documents)
        try:
            array = _map(path, dtype, count)
            if not is_tokens or info.key not in self._checked:
                check_blocks(path, array, info.token_checksums if is_tokens else info.end_checksums)
        except DamagedShardError:
            with contextlib.suppress(OSError):  # a cache that may only be read stays as it is
                (self.path / f"{info.key}.json").unlink(missing_ok=True)
            raise
        return array

    def scratch(self) -> Scratch:
        """Return a folder for what is being written, on the disk of the cache."""
        try:
            self._temporary.mkdir(exist_ok=True)  # a copied cache may lack an empty folder
            return Scratch(self._temporary)
        except OSError as problem:
            raise writing_failed(self._temporary, problem) from None

    def _tokens(self, key: str) -> Path:
        return self.path / f"{key}.tokens"

    def _ends(self, key: str) -> Path:
        return self.path / f"{key}.ends"


def _map(path: Path, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    """Map a file read-only. Through pyarrow, because NumPy's and Python's mappings hold a file descriptor each."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file:
            data = file.read_buffer()
    except FileNotFoundError:
        raise DamagedShardError(f"{path}: missing shard. {_REPAIR}") from None
    except OSError as problem:
        raise CacheError(f"{path}: cannot be read ({problem.strerror or problem}).") from None
    if data.size != count * dtype.itemsize:
        expected = f"{count * dtype.itemsize:,} bytes expected, {data.size:,} found"
        raise DamagedShardError(f"{path}: truncated shard ({expected}). {_REPAIR}")
    return np.frombuffer(data, dtype=dtype)


_REPAIR = "Run the `headrace prepare` or `headrace train` that made this cache again: it rebuilds what is damaged."


def check_blocks(path: Path, array: npt.NDArray[Any], checksums: tuple[int, ...]) -> None:
    """Compare every MiB with its checksum; damage is an error that says which."""
    found = block_checksums(array.view(np.uint8).data)
    if len(found) != len(checksums):
        raise DamagedShardError(f"{path}: {len(found)} blocks, {len(checksums)} checksums. {_REPAIR}")
    for number, (stored, actual) in enumerate(zip(checksums, found, strict=True)):
        if stored != actual:
            first = number * CHECKSUM_BLOCK_BYTES
            last = min(first + CHECKSUM_BLOCK_BYTES, array.nbytes) - 1
            raise DamagedShardError(
                f"{path}: damaged between bytes {first:,} and {last:,} (checksum differs). {_REPAIR}"
            )
