"""Hugging Face datasets that live in this process: each has a name like a path, under which its rows are found.

A dataset is whatever the `datasets` package made: loaded, mapped from disk, filtered, shuffled, in memory. Only its
Arrow table and its order of rows are used, so the package itself is never imported here. The name holds the dataset's
own fingerprint, which changes with every transformation.
"""

from __future__ import annotations

import os
import re
import weakref
from dataclasses import dataclass
from typing import Any

from headrace.errors import CorpusError, UsageError
from headrace.files import digest

SCHEME = "dataset:"
TRAINING_SPLIT = "train"


@dataclass(frozen=True, eq=False)
class DatasetTable:
    """The rows of a dataset: an Arrow table, mostly mapped from files, and the order of rows if it is another one."""

    path: str
    table: Any
    indices: Any
    """Numbers of rows of the table, in the dataset's order; None: all of them as they are."""
    files: tuple[str, ...]
    """Files that the table is mapped from."""
    listed: tuple[tuple[int, int, int, int], ...]
    """Size, times and inode of each of those files when the dataset was given."""

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows if self.indices is None else len(self.indices))

    @property
    def state(self) -> int:
        """A number that changes whenever one of the files may have changed."""
        return int(digest(repr(self.listed))[:15], 16)

    def check_unchanged(self) -> None:
        """Refuse to go on when a file that the dataset is mapped from was changed or removed."""
        for file, before in zip(self.files, self.listed, strict=True):
            try:
                now = _file_state(file)
            except OSError:
                raise CorpusError(
                    f"{file}: was removed, but {self.path} is read from it. Load the dataset again."
                ) from None
            if now != before:
                raise CorpusError(f"{file}: changed after {self.path} was loaded from it. Load the dataset again.")


_tables: weakref.WeakValueDictionary[str, DatasetTable] = weakref.WeakValueDictionary()


def is_dataset(given: object) -> bool:
    """Check whether an object is of the `datasets` package, or of a class derived from one of it."""
    return bool(_kind(given))


def as_table(given: Any) -> DatasetTable:
    """Return the rows of a dataset; of several splits, the training split. The caller must keep what it gets."""
    kind = _kind(given)
    if kind == "DatasetDict":
        return as_table(given[choose_split(list(given), "this DatasetDict", "dataset[{!r}]")])
    if kind != "Dataset":
        raise UsageError(
            f"a {kind} has no rows that can be read in any order. Load it without streaming=True; or write it to a file"
            " first and name the file."
        )
    files = tuple(os.fspath(facts["filename"]) for facts in given.cache_files)
    try:
        listed = tuple(map(_file_state, files))
    except OSError as problem:
        raise CorpusError(f"{problem.filename}: a file of the dataset cannot be read ({problem.strerror}).") from None
    indices = None if given._indices is None else given._indices.table.column(0)
    table = DatasetTable(_name(given), given.data.table, indices, files, listed)
    known = _tables.get(table.path)
    if known is not None and known.listed == listed:
        return known
    _tables[table.path] = table
    return table


def find_table(path: str) -> DatasetTable | None:
    """Return the dataset of this name, if it is still there."""
    return _tables.get(path)


def require_table(path: str) -> DatasetTable:
    """Return the dataset of this name, which must still be there."""
    table = find_table(path)
    if table is None:
        raise CorpusError(f"{path}: names a dataset of another process, or one that is gone. Give the dataset itself.")
    return table


def choose_split(splits: list[str], place: str, naming: str) -> str:
    """Return which split is trained on: "train", or the only one."""
    if TRAINING_SPLIT in splits:
        return TRAINING_SPLIT
    if len(splits) == 1:
        return splits[0]
    named = " or ".join(naming.format(split) for split in splits[:2])
    raise UsageError(f"{place}: no split {TRAINING_SPLIT!r} (it has: {', '.join(splits)}). Name one: {named}")


def _kind(given: object) -> str:
    for base in type(given).__mro__:
        if base.__module__.partition(".")[0] == "datasets":
            return base.__name__ if base.__name__.endswith(("Dataset", "DatasetDict")) else ""
    return ""


def _name(dataset: Any) -> str:
    title = dataset.info.dataset_name or dataset.info.builder_name or ""
    parts = [re.sub(r"[^\w.-]+", "-", str(part)) for part in (title, dataset.split) if part]
    return SCHEME + "/".join([*parts, dataset._fingerprint])


def _file_state(path: str) -> tuple[int, int, int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
