"""The folder of document records in a cache: written while text is read, and decided upon before it is tokenised."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.data.selection.duplicates import Marks, count_duplicates, mark_duplicates
from headrace.data.selection.records import DocumentRecord, GatheredRecord, read_record, write_record
from headrace.data.selection.sieve import Verdict
from headrace.errors import CacheError
from headrace.files import digest, read_checked_json, write_checked_json, writing_failed
from headrace.locks import Scratch

FOLDER = "documents"
OWN_NAME = re.compile(r"(verdict-)?[0-9a-f]{16,}(\.[a-z]+)*")
"""Names of what headrace writes into the folders of a cache: nothing else there may be removed."""
BLOCK_BYTES = 1 << 20
Scratches = Callable[[], Scratch]
"""A function that makes a folder for what is being written, on the disk of the cache."""


@dataclass(frozen=True)
class Verdicts:
    """What was decided about every document of a corpus, segment by segment."""

    segments: list[Verdict]
    digests: list[str]
    """A hash of what each segment leaves out; "" if it leaves out nothing."""


class RecordFolder:
    """Records of the documents of a corpus, one for each segment."""

    def __init__(self, cache: Path, scratch: Scratches, names: Sequence[str], num_keys: int) -> None:
        """`names`: what each segment's record is called, by the content of the segment and the selection."""
        self._path = cache / FOLDER
        self._scratch = scratch
        self._names = list(names)
        self._num_keys = num_keys

    def has(self, segment: int) -> bool:
        return (self._path / self._names[segment]).is_file()

    def read(self, segment: int, check: bool = False) -> DocumentRecord | None:
        """Return the record of a segment; None if it is missing, or damaged as far as is looked at."""
        return read_record(self._path / self._names[segment], self._num_keys, check)

    def write(self, segment: int, record: GatheredRecord) -> None:
        try:
            self._path.mkdir(exist_ok=True)
        except OSError as problem:
            raise writing_failed(self._path, problem) from None
        with self._scratch() as folder:
            write_record(self._path / self._names[segment], record, folder / "record")

    def decide(self) -> Verdicts:
        """Decide about all documents, once all records are there; what was decided before is used again."""
        name = f"verdict-{digest(str(self._num_keys), *self._names)}"
        with contextlib.suppress(CacheError, OSError, KeyError, ValueError, TypeError):
            return self._read_verdicts(name)
        sizes = [len(self._existing(segment, check=True).facts) for segment in range(len(self._names))]
        with self._scratch() as folder:
            marks = _mapped(folder / "marks", sum(sizes), "w+")
            mark_duplicates(self._existing, sizes, marks, self._num_keys)
            digests = []
            for start, stop in _bounds(sizes):
                marked = marks[start:stop]
                digests.append(digest(marked.tobytes()) if marked.any() else "")
            marks.flush() if isinstance(marks, np.memmap) else None
            del marks
            try:
                os.replace(folder / "marks", self._path / f"{name}.marks")
            except OSError as problem:
                raise writing_failed(self._path / name, problem) from None
            write_checked_json(self._path / name, {"sizes": sizes, "digests": digests}, folder / "verdict")
        return self._read_verdicts(name)

    def count_duplicates(self) -> dict[str, int] | None:
        """Return how many documents and bytes repeat earlier documents exactly; None if a record is missing."""
        sizes = []
        for segment in range(len(self._names)):
            record = self.read(segment, check=True)  # mapped, so it holds a file open: one at a time
            if record is None:
                return None
            sizes.append(len(record.facts))
        with self._scratch() as folder:
            documents, num_bytes = count_duplicates(self._existing, sizes, _mapped(folder / "marks", sum(sizes), "w+"))
        return {"documents": documents, "bytes": num_bytes}

    def sweep(self) -> None:
        """Remove what belongs to an older version of the corpus or to another selection."""
        name = f"verdict-{digest(str(self._num_keys), *self._names)}"
        current = {*self._names, name, f"{name}.marks"}
        with contextlib.suppress(OSError):
            for found in os.listdir(self._path):
                if found not in current and OWN_NAME.fullmatch(found):
                    (self._path / found).unlink(missing_ok=True)

    def _existing(self, segment: int, check: bool = False) -> DocumentRecord:
        record = self.read(segment, check)
        if record is None:
            with contextlib.suppress(OSError):
                (self._path / self._names[segment]).unlink(missing_ok=True)
            raise CacheError(
                f"{self._path / self._names[segment]}: damaged or removed while duplicates were looked for. Run again."
            )
        return record

    def _read_verdicts(self, name: str) -> Verdicts:
        found = read_checked_json(self._path / name)
        sizes, digests = found["sizes"], found["digests"]
        marks = _mapped(self._path / f"{name}.marks", sum(sizes), "r")
        verdicts = []
        for segment, (start, stop) in enumerate(_bounds(sizes)):
            marked = marks[start:stop]
            if (digest(marked.tobytes()) if digests[segment] else "") != digests[segment]:
                raise ValueError("damaged")
            verdicts.append(Verdict(self._existing(segment).parts, marked))
        return Verdicts(verdicts, digests)


def _mapped(path: Path, size: int, mode: str) -> Marks:
    """Map a file of one byte for each document, so that a billion of them take no memory of the process.

    A new one is written whole first: a full disk is an error then, and not a signal that ends the process.
    """
    if size == 0:
        path.write_bytes(b"") if mode == "w+" else None
        return np.zeros(0, np.uint8)
    if mode == "w+":
        try:
            with open(path, "wb") as file:
                for start in range(0, size, BLOCK_BYTES):
                    file.write(bytes(min(BLOCK_BYTES, size - start)))
        except OSError as problem:
            raise writing_failed(path, problem) from None
        mode = "r+"
    return np.memmap(path, np.uint8, mode, shape=(size,))  # type: ignore[call-overload,no-any-return]


def _bounds(sizes: Sequence[int]) -> list[tuple[int, int]]:
    stops = np.cumsum(np.asarray(sizes, np.int64)).tolist()
    return [(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]
