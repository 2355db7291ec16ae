"""What can be asked of a place that holds remote files, and what may go wrong there.

A kind of store is one file that registers itself in `registry.py`. It makes single attempts: retrying, parallel ranges
and reading ahead are the same for all kinds (`fetch.py`, `remote_file.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

SIZE_ONLY = "size"
"""The version of a file of which the server says nothing but the size."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a store as it was when it was looked at."""

    key: str
    size: int
    version: str
    """Text that changes when the content does: from its ETag, its version, or the time of its last change."""


class Failure(Exception):  # noqa: N818 - one attempt; whoever gives up makes an error of it
    """One attempt that failed. Its text names neither addresses nor anything that the server sent."""

    def __init__(self, what: str, remedy: str = "", *, may_pass: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.may_pass = may_pass
        """Whether another attempt may succeed."""


class Store(ABC):
    """A place that holds files: a bucket, a web server, a repository."""

    can_list = True

    @abstractmethod
    def look_up(self, key: str) -> Entry | None:
        """Return the file at a key; None if there is none."""

    @abstractmethod
    def list(self, folder: str) -> Iterator[Entry]:
        """Yield every file below a folder ("" or a key that ends with a slash), in any order."""

    @abstractmethod
    def read(self, entry: Entry, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes [begin, end) of a file, some at a time; Failure if it is not the version that was listed."""


CHANGED = Failure("changed while the corpus was being read", "Run again when it is complete")
VANISHED = Failure("was removed while the corpus was being read", "Run again: the corpus is then read as it is")
