"""File systems of fsspec: files that change, passwords in addresses, drivers that are not installed, forks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.data.corpus.remote.addresses import shown, without_secrets
from headrace.data.corpus.remote.fsspec_store import FsspecStore
from headrace.data.corpus.remote.store import Failure
from headrace.errors import MissingExtraError

fsspec = pytest.importorskip("fsspec", reason="pip install 'headrace[remote]'")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402
from fsspec.utils import infer_storage_options  # noqa: E402


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


class GuardedFileSystem(MemoryFileSystem):
    """Files in memory that only a user with the right password gets."""

    protocol = "guarded"
    store: dict[str, Any] = {}  # noqa: RUF012 - as fsspec has it
    pseudo_dirs: list[str] = [""]  # noqa: RUF012

    def __init__(self, username: str = "", password: str = "", **_: Any) -> None:
        super().__init__()
        if (username, password) != ("me", "secret"):
            raise PermissionError("wrong password")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        options = infer_storage_options(path)
        return {name: options[name] for name in ("username", "password") if name in options}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + infer_storage_options(path)["path"].strip("/")


def test_passwords_are_used_but_never_shown(tmp_path: Path) -> None:
    fsspec.register_implementation("guarded", f"{__name__}.GuardedFileSystem", clobber=True)
    files = GuardedFileSystem("me", "secret")
    files.pipe("/corpus/a.txt", b"first text")
    files.pipe("/corpus/b.txt", b"second text")
    cache = hr.prepare("guarded://me:secret@host/corpus", "byte", tmp_path / "cache")
    assert cache.num_documents == 2
    assert cache.sources[0].path == "guarded://me@host/corpus"
    for path in (tmp_path / "cache").rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes()
    with pytest.raises(hr.HeadraceError, match="guarded://you@host") as refused:
        hr.prepare("guarded://you:secret@host/corpus", "byte", tmp_path / "other")
    assert "secret" not in str(refused.value)


def test_what_is_no_password_stays() -> None:
    for address in (
        "abfss://container@account.host/a.txt",
        "github://owner:repository@main/a.txt",
        "sftp://me@host:22/a:b@c.txt",
        "s3://bucket/a:b@c.txt",
    ):
        assert shown(address) == without_secrets(address) == address
    assert shown("sftp://me:a@b:c@host/d@e.txt") == "sftp://me@host/d@e.txt"


@pytest.mark.parametrize(
    ("scheme", "package"), [("sftp", "paramiko"), ("box", "boxfs"), ("nodriver", "no_such_driver")]
)
def test_a_driver_that_is_not_installed(scheme: str, package: str, tmp_path: Path) -> None:
    fsspec.register_implementation("nodriver", "no_such_driver.System", clobber=True)
    if scheme != "nodriver" and importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(MissingExtraError, match=f"^{scheme}://: .* Install it with: pip install {package}$"):
        hr.prepare(f"{scheme}://me:secret@localhost/a.txt", "byte", tmp_path / "cache")


FORK = """
import os, warnings
import fsspec
from headrace.data.corpus.remote import fetch
from headrace.data.corpus.remote.registry import open_store

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, which is what this is about
fsspec.filesystem("memory").pipe("/forked.txt", b"text")
entry = open_store("memory://").look_up("forked.txt")

def read():
    future = fetch.fetch_soon("memory://forked.txt", entry, 0, 4, lambda: False)
    return future.result(timeout=5)

assert read() == b"text"
child = os.fork()
if child == 0:
    try:
        os._exit(0 if read() == b"text" else 1)
    finally:
        os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert read() == b"text"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_reads_with_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=30)


FORK_OF_OBSTORE = """
import os, warnings
from headrace.data.corpus.remote.registry import open_store
from headrace.errors import UsageError

warnings.simplefilter("ignore", DeprecationWarning)
open_store("http://127.0.0.1:1")
child = os.fork()
if child == 0:
    try:
        open_store("http://127.0.0.1:1")
    except UsageError as refused:
        os._exit(0 if "forked" in str(refused) else 1)
    finally:
        os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_obstore_is_refused_in_a_forked_process() -> None:
    pytest.importorskip("obstore", reason="pip install 'headrace[remote]'")
    subprocess.run([sys.executable, "-c", FORK_OF_OBSTORE], check=True, timeout=30)
