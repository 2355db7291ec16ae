"""Shards being written: tokens, document ends and checksums go to temporary files until they are sealed."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from headrace.data.cache.shards import PARTS_KEY, PartInfo, ShardFolder, ShardInfo, TokenArray
from headrace.files import CHECKSUM_BLOCK_BYTES, write_checked_json, writing_failed


class ShardWriter:
    """A shard that is being written: `seal` completes it; leaving the context without sealing discards it."""

    def __init__(self, folder: ShardFolder, key: str) -> None:
        self._folder = folder
        self._key = key
        self._scratch = folder.scratch()
        self._paths = (self._scratch.path / "tokens", self._scratch.path / "ends")
        try:
            self._tokens = _ChecksummedFile(self._paths[0])
            self._ends = _ChecksummedFile(self._paths[1])
        except OSError as problem:
            self._scratch.close()
            raise writing_failed(self._paths[0], problem) from None
        self.num_tokens = 0
        self.num_documents = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what has not been sealed."""
        self._tokens.close()
        self._ends.close()
        self._scratch.close()

    def add(self, tokens: TokenArray, ends: npt.NDArray[np.int64]) -> None:
        """Append tokens; `ends` are offsets within these."""
        try:
            self._tokens.write(tokens)
            self._ends.write((ends + self.num_tokens).astype("<u8"))
        except OSError as problem:
            raise writing_failed(self._folder.path / self._key, problem) from None
        self.num_tokens += len(tokens)
        self.num_documents += len(ends)

    def seal(self, parts: list[PartInfo]) -> ShardInfo:
        """Write everything to the disk, move it into place, and write the seal last."""
        try:
            checksums = (self._tokens.finish(), self._ends.finish())
            for temporary, suffix in zip(self._paths, (".tokens", ".ends"), strict=True):
                os.replace(temporary, self._folder.path / f"{self._key}{suffix}")
        except OSError as problem:
            raise writing_failed(self._folder.path / self._key, problem) from None
        info = ShardInfo(self._key, self.num_tokens, self.num_documents, *checksums)
        seal = {"shard": info.to_json(), PARTS_KEY: [part.to_json() for part in parts]}
        write_checked_json(self._folder.path / f"{self._key}.json", seal, self._scratch.path / "seal")
        return info


class _ChecksummedFile:
    """A file that computes the checksum of every MiB while it is written."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - lives as long as the writer
        self._checksums: list[int] = []
        self._room = 0

    def write(self, array: npt.NDArray[Any]) -> None:
        data = np.ascontiguousarray(array).view(np.uint8).data
        while data:
            if self._room == 0:
                self._checksums.append(0)
                self._room = CHECKSUM_BLOCK_BYTES
            block = data[: self._room]
            self._checksums[-1] = zlib.crc32(block, self._checksums[-1])
            self._file.write(block)
            self._room -= len(block)
            data = data[len(block) :]

    def finish(self) -> tuple[int, ...]:
        """Write everything to the disk, and return the checksums."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return tuple(self._checksums)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: the buffer cannot be flushed, and need not be
            self._file.close()
