"""Records of documents: what a segment's documents are, without their text, in a file beside the shards.

    documents/NAME     a line of JSON (counts, checksum), then uint64: facts of each document, then its keys, key by key

They are made while a segment is read, and are only an accelerator: a missing or damaged one is made anew.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.data.selection.hashing import Hashes
from headrace.files import writing_failed

_FORMAT = "headrace-documents-1"
_REASON_SHIFT = np.uint64(56)
_OPEN = np.uint64(1 << 55)
_CONTINUATION = np.uint64(1 << 54)
_LENGTH = np.uint64((1 << 48) - 1)
_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class DocumentRecord:
    """The documents of a segment, in order. A document that lies across files or segments is recorded in pieces."""

    parts: list[int]
    """How many documents each part of the segment has."""
    facts: Hashes
    keys: Hashes
    """Keys by which duplicates are found: (keys, documents)."""

    @property
    def reasons(self) -> npt.NDArray[np.uint8]:
        """Why filters leave a document out; 0: they keep it."""
        return (self.facts >> _REASON_SHIFT).astype(np.uint8)

    @property
    def is_open(self) -> npt.NDArray[np.bool_]:
        """Whether a document goes on in the next piece."""
        return (self.facts & _OPEN).astype(bool)

    @property
    def is_continuation(self) -> npt.NDArray[np.bool_]:
        """Whether a document began in an earlier piece."""
        return (self.facts & _CONTINUATION).astype(bool)

    @property
    def lengths(self) -> Hashes:
        return self.facts & _LENGTH


class Slab(NamedTuple):
    """Consecutive documents as they are read. Most keys of tiny documents would be 0: those are not held."""

    facts: Hashes
    whole: Hashes
    """The key of each document that is the hash of all of it."""
    has_bands: npt.NDArray[np.bool_]
    bands: Hashes
    """The other keys, of those documents that have some: (keys, documents)."""

    @classmethod
    def of(cls, facts: Hashes, keys: Hashes) -> Slab:
        has_bands: npt.NDArray[np.bool_] = np.logical_or.reduce(keys[1:] != 0, axis=0)
        return cls(facts, keys[0].copy(), has_bands, keys[1:, has_bands])


@dataclass(frozen=True)
class GatheredRecord:
    """The record of a segment before it is written: in slabs, so that its keys are never in memory at full size."""

    parts: list[int]
    slabs: list[Slab]
    num_keys: int

    def rows(self) -> Iterator[Hashes]:
        """Yield the facts of all documents, then their keys, key by key."""
        nothing = np.zeros(0, np.uint64)
        yield np.concatenate([nothing, *(slab.facts for slab in self.slabs)])
        yield np.concatenate([nothing, *(slab.whole for slab in self.slabs)])
        has_bands = np.concatenate([np.zeros(0, bool), *(slab.has_bands for slab in self.slabs)])
        for number in range(self.num_keys - 1):
            row = np.zeros(len(has_bands), np.uint64)
            row[has_bands] = np.concatenate([nothing, *(slab.bands[number] for slab in self.slabs)])
            yield row


def pack_facts(lengths: Sequence[int], reasons: Sequence[int], starts_inside: bool, ends_inside: bool) -> Hashes:
    """Return the facts of consecutive documents; the first may continue an earlier piece, the last may go on."""
    facts = np.asarray(lengths, np.uint64) | (np.asarray(reasons, np.uint64) << _REASON_SHIFT)
    if len(facts):
        facts[0] |= _CONTINUATION if starts_inside else np.uint64(0)
        facts[-1] |= _OPEN if ends_inside else np.uint64(0)
    return facts


def write_record(path: Path, record: GatheredRecord, temporary: Path) -> None:
    """Write a record by way of a temporary file. It is not synced: after a crash, a damaged one is made anew."""
    checksum = 0
    for row in record.rows():
        checksum = zlib.crc32(row.astype("<u8", copy=False).data, checksum)
    header = {
        "format": _FORMAT,
        "parts": record.parts,
        "documents": sum(record.parts),
        "keys": record.num_keys,
        "checksum": checksum,
    }
    try:
        with open(temporary, "wb") as file:
            file.write(json.dumps(header).encode() + b"\n")
            for row in record.rows():
                file.write(row.astype("<u8", copy=False).data)
        os.replace(temporary, path)
    except OSError as problem:
        raise writing_failed(path, problem) from None


def read_record(path: Path, num_keys: int, check: bool = True) -> DocumentRecord | None:
    """Map a record with this number of keys; None if it is missing or damaged. `check`: compare its checksum."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.readline(_HEADER_BYTES))
            count, place = header["documents"], file.tell()
            is_right = header["format"] == _FORMAT and header["keys"] == num_keys and sum(header["parts"]) == count
            num_values = count * (1 + num_keys)
            if not is_right or os.fstat(file.fileno()).st_size != place + 8 * num_values:
                return None
            values: Any = np.memmap(file, "<u8", "r", place, (num_values,)) if num_values else np.zeros(0, np.uint64)
        if check and zlib.crc32(values) != header["checksum"]:
            return None
        return DocumentRecord(header["parts"], values[:count], values[count:].reshape(num_keys, count))
    except (OSError, ValueError, KeyError, TypeError):
        return None
