"""File systems of fsspec: files that change, passwords in addresses, drivers that are not installed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace.data.corpus.remote.fsspec_store import FsspecStore
from headrace.data.corpus.remote.store import Failure

fsspec = pytest.importorskip("fsspec", reason="pip install 'headrace[remote]'")


def test_a_part_of_a_file_that_has_changed() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/changing.txt", b"before" * 100)
    store = FsspecStore("memory://")
    entry = store.look_up("changing.txt")
    assert entry is not None
    assert b"".join(store.read(entry, 6, 12)) == b"before"
    memory.pipe("/changing.txt", b"after " * 100)
    memory.store["/changing.txt"].created += timedelta(seconds=5)
    with pytest.raises(Failure, match="changed while the corpus was being read"):
        list(store.read(entry, 6, 12))
    memory.rm("/changing.txt")
    with pytest.raises(Failure, match="was removed while the corpus was being read"):
        list(store.read(entry, 6, 12))
