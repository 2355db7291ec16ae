"""Every other kind of address, by fsspec: what its file systems can list and read by ranges."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from headrace.data.corpus.remote.addresses import given
from headrace.data.corpus.remote.failures import failure_of
from headrace.data.corpus.remote.store import CHANGED, SIZE_ONLY, VANISHED, Entry, Failure, Store
from headrace.errors import MissingExtraError
from headrace.extras import require

_VERSIONS = ("ETag", "etag", "e_tag", "checksum", "sha256", "md5Hash", "version_id", "generation")
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")


class FsspecStore(Store):
    """A file system of fsspec, such as sftp:// or webhdfs://."""

    def __init__(self, address: str) -> None:
        """`address`: the scheme; hosts are part of keys, as fsspec has it."""
        self._scheme = address
        self._systems: dict[str, Any] = {}

    def look_up(self, key: str) -> Entry | None:
        system, path = self._system(key)
        try:
            facts = system.info(path)
        except FileNotFoundError:
            return None
        except Exception as problem:
            raise failure_of(problem) from None
        return _entry(key, facts) if facts.get("type") == "file" else None

    def list(self, folder: str) -> Iterator[Entry]:
        system, path = self._system(folder)
        try:
            system.invalidate_cache()
            found = system.find(path, detail=True)
        except FileNotFoundError:
            return
        except Exception as problem:
            raise failure_of(problem) from None
        base = path.rstrip("/")
        for name, facts in found.items():
            yield _entry(folder + name[len(base) :].lstrip("/"), facts)

    def read(self, entry: Entry, begin: int, end: int) -> Iterator[bytes]:
        system, path = self._system(entry.key)
        try:
            data = system.cat_file(path, start=begin, end=end)
        except FileNotFoundError:
            raise VANISHED from None
        except Exception as problem:
            raise failure_of(problem) from None
        found = self.look_up(entry.key)  # afterwards: a file that is still as it was listed was so when it was read
        if found != entry:
            raise VANISHED if found is None else CHANGED
        if len(data) != end - begin:
            raise Failure("the server sent fewer bytes than the file has", may_pass=True)
        yield bytes(data)

    def _system(self, key: str) -> tuple[Any, str]:
        """Return the file system of a key, and the key as it knows it."""
        address = given(self._scheme + key)
        place = address.removeprefix(self._scheme).partition("/")[0]
        if place not in self._systems:
            core = require("fsspec.core", "remote")
            try:
                self._systems[place] = core.url_to_fs(address, use_listings_cache=False)[0]
            except ImportError as problem:
                raise _missing_driver(self._scheme, problem) from None
            except Exception as problem:
                raise failure_of(problem) from None
        system = self._systems[place]
        return system, system._strip_protocol(address)


def known_protocols() -> list[str]:
    """Return the schemes that fsspec knows."""
    return list(require("fsspec", "remote").available_protocols())


def _missing_driver(scheme: str, problem: ImportError) -> MissingExtraError:
    """Return the error for a kind of address whose library is not installed. fsspec's own text names the packages."""
    text = f"{problem}".rstrip(".")
    packages = re.findall(r'"([\w.-]+)"', text) or re.findall(r"nstall (?:the )?'?([\w.-]+)", text)
    module = getattr(problem.__cause__ or problem, "name", None)
    line = " ".join(packages) or (module or "").partition(".")[0]
    remedy = f" Install it with: pip install {line}" if line else ""
    return MissingExtraError(f"{scheme}: what reads such addresses is not installed ({text}).{remedy}")


def _entry(key: str, facts: dict[str, Any]) -> Entry:
    """Return a file by what a file system says of it."""
    named = next((f"{name} {facts[name]}" for name in _VERSIONS if facts.get(name)), "")
    changed = next((f"{name} {_seconds(facts[name])}" for name in _TIMES if facts.get(name)), SIZE_ONLY)
    return Entry(key, int(facts.get("size") or 0), named or changed)


def _seconds(time: Any) -> Any:
    """Return a time as one file system may say it in two ways: a list has numbers, and a file has dates."""
    if isinstance(time, datetime):
        return int(time.timestamp())
    return int(time) if isinstance(time, float) else time
