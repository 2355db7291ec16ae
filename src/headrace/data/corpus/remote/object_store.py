"""Buckets (S3, Google Cloud Storage, Azure) and web servers, by obstore.

Credentials come from where obstore finds them: the environment, the machine's role, and for S3 also from the files of
the AWS command line if boto3 is installed. Nothing of them passes through headrace.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from headrace.data.corpus.remote.addresses import WEB_SCHEMES, given
from headrace.data.corpus.remote.failures import NOT_FOUND, failure_of
from headrace.data.corpus.remote.patience import current_patience
from headrace.data.corpus.remote.store import CHANGED, SIZE_ONLY, VANISHED, Entry, Failure, Store
from headrace.errors import UsageError
from headrace.extras import require

STREAMED_BYTES = 64 << 10
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_user = 0
"""The process that obstore was first used in, from which others may have been forked."""


def _library() -> Any:
    """Return obstore. Refuse it in a process forked from one that used it: its threads stayed there, and it hangs."""
    global _user
    if _user not in (0, os.getpid()):
        raise UsageError(
            "remote files cannot be read in a process that was forked from one that has read some. Read them before"
            ' (hr.prepare), or start the process with multiprocessing.get_context("spawn").'
        )
    library = require("obstore.store", "remote")
    _user = os.getpid()
    return library


class ObjectStore(Store):
    """A bucket."""

    def __init__(self, address: str) -> None:
        """`address`: scheme and bucket."""
        library = _library()
        options: dict[str, Any] = {"client_options": client_options(), "retry_config": {"max_retries": 0}}
        if address.startswith("s3://"):
            options |= _s3_options(options["client_options"])
        try:
            self._store = library.from_url(address, **options)
        except Exception as problem:
            raise failure_of(problem) from None

    def look_up(self, key: str) -> Entry | None:
        try:
            return _entry(key, self._store.head(key))
        except FileNotFoundError:
            return None
        except Exception as problem:
            raise self._reason(key, problem) from None

    def _reason(self, key: str, problem: Exception) -> Failure:
        """Return why a file cannot be looked up: the answer to HEAD has a status only, that to GET says more."""
        try:
            self._store.get(key, options={"range": (0, 1)})
        except Exception as other:
            return failure_of(other)
        return failure_of(problem)

    def list(self, folder: str) -> Iterator[Entry]:
        try:
            for batch in self._store.list(prefix=folder.rstrip("/") or None):
                for facts in batch:
                    if facts["path"].startswith(folder):
                        yield _entry(facts["path"], facts)
        except Exception as problem:
            raise failure_of(problem) from None

    def read(self, entry: Entry, begin: int, end: int) -> Iterator[bytes]:
        yield from read_range(self._store, entry.key, entry, begin, end)


class WebStore(Store):
    """A web server, which can be asked for files but not for a list of them."""

    can_list = False

    def __init__(self, address: str) -> None:
        """`address`: scheme and host."""
        self._address = address
        self._library = _library()
        self._servers: dict[str, Any] = {}

    def look_up(self, key: str) -> Entry | None:
        server, path = self._server(key)
        # An address that was signed for GET is refused to HEAD. Some servers know no HEAD at all.
        signed = bool(urlsplit(given(f"{self._address}/{key}")).query)
        attempts = [self._by_first_byte, self._by_head] if signed else [self._by_head, self._by_first_byte]
        problems: list[Exception] = []
        for attempt in attempts:
            try:
                return _entry(key, attempt(server, path))
            except Exception as problem:
                problems.append(problem)
        if isinstance(problems[0], FileNotFoundError):
            return None
        raise failure_of(problems[0])

    def list(self, folder: str) -> Iterator[Entry]:
        raise AssertionError("a web server lists no files")

    def read(self, entry: Entry, begin: int, end: int) -> Iterator[bytes]:
        yield from read_range(*self._server(entry.key), entry, begin, end)

    def _by_head(self, server: Any, path: str) -> Any:
        return server.head(path)

    def _by_first_byte(self, server: Any, path: str) -> Any:
        return server.get(path, options={"range": (0, 1)}).meta

    def _server(self, key: str) -> tuple[Any, str]:
        """Return a client and the path to ask it for: one client for all plain addresses, one for each other."""
        address = given(f"{self._address}/{key}")
        parts = urlsplit(address)
        is_plain = not parts.query and "%" not in parts.path and "@" not in parts.netloc and "//" not in parts.path
        base = f"{parts.scheme}://{parts.netloc}" if is_plain else address
        if base not in self._servers:
            options = client_options() | {"allow_http": parts.scheme == "http"}
            retries = {"max_retries": 0}
            self._servers[base] = self._library.HTTPStore.from_url(base, client_options=options, retry_config=retries)
        return self._servers[base], parts.path.lstrip("/") if is_plain else ""


def read_range(store: Any, path: str, entry: Entry, begin: int, end: int) -> Iterator[bytes]:
    """Yield bytes of a file that must still be the version that was listed."""
    options: dict[str, Any] = {} if (begin, end) == (0, entry.size) else {"range": (begin, end)}
    kind, _, tag = entry.version.partition(" ")
    if kind == "etag" and not tag.startswith("W/"):
        options["if_match"] = tag
    elif kind == "version":
        options["version"] = tag
    try:
        answer = store.get(path, options=options)
        found = _entry(entry.key, answer.meta)
        if found.version != entry.version or (kind == SIZE_ONLY and found.size != entry.size):
            raise CHANGED
        if found.size != entry.size:
            raise Failure("the server says another length than before", may_pass=True)
        if tuple(answer.range) != (begin, end):
            raise Failure("the server sent other bytes than it was asked for", may_pass=True)
        place = begin
        for part in answer.stream(min_chunk_size=STREAMED_BYTES):
            place += len(part)
            if place > end:
                raise Failure("the server sent more bytes than it said", may_pass=True)
            yield bytes(part)
        if place < end:
            raise Failure(f"the server sent {end - place:,} bytes less than it said", may_pass=True)
    except Failure:
        raise
    except Exception as problem:
        failure = failure_of(problem)
        raise VANISHED if failure.what == NOT_FOUND else failure from None


def client_options() -> dict[str, Any]:
    """Return the time limits of a request."""
    patience = current_patience()
    return {
        "connect_timeout": timedelta(seconds=patience.connect_s),
        "read_timeout": timedelta(seconds=patience.stall_s),
        "timeout": timedelta(seconds=patience.request_s),
    }


def _s3_options(client: dict[str, Any]) -> dict[str, Any]:
    """Return what the environment says of S3 in the way of other tools, where obstore has another way."""
    options: dict[str, Any] = {}
    endpoint = next((os.environ[name] for name in _S3_ENDPOINTS if os.environ.get(name)), "")
    if endpoint:
        options["endpoint"] = endpoint
        client["allow_http"] = endpoint.startswith("http://")
    if "AWS_ACCESS_KEY_ID" not in os.environ and importlib.util.find_spec("boto3"):
        try:
            from obstore.auth.boto3 import Boto3CredentialProvider

            options["credential_provider"] = Boto3CredentialProvider()
        except ValueError:
            pass  # boto3 finds no credentials either
    return options


def _entry(key: str, facts: Any) -> Entry:
    """Return a file by what a server says of it."""
    changed = facts.get("last_modified")
    if facts.get("e_tag"):
        version = f"etag {facts['e_tag']}"
    elif facts.get("version"):
        version = f"version {facts['version']}"
    elif changed is not None and changed != _EPOCH:
        version = f"modified {changed.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"
    else:
        version = SIZE_ONLY
    return Entry(key, int(facts["size"]), version)


def is_web(address: str) -> bool:
    """Check whether an address is one of a web server."""
    return re.match(rf"(?:{'|'.join(WEB_SCHEMES)})://", address) is not None
