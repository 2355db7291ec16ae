"""The kinds of stores, by the scheme of their addresses. A new kind is a class in a file of its own, and one entry."""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Callable

from headrace.data.corpus.remote.addresses import BUCKET_SCHEMES, WEB_SCHEMES, scheme_of
from headrace.data.corpus.remote.fsspec_store import FsspecStore, known_protocols
from headrace.data.corpus.remote.hub_store import HubStore
from headrace.data.corpus.remote.object_store import ObjectStore, WebStore
from headrace.data.corpus.remote.store import Store
from headrace.errors import UsageError

KINDS: dict[str, Callable[[str], Store]] = {
    **dict.fromkeys(BUCKET_SCHEMES, ObjectStore),
    **dict.fromkeys(WEB_SCHEMES, WebStore),
    "hf": HubStore,
}
_open: dict[str, Store] = {}
_lock = threading.Lock()


def open_store(address: str) -> Store:
    """Return the store of an address such as s3://bucket; the same one each time, so that connections are kept."""
    with _lock:
        if address not in _open:
            _open[address] = _kind_of(scheme_of(address))(address)
        return _open[address]


def close_stores() -> None:
    """Forget all open stores, so that the next ones see an environment that has changed."""
    with _lock:
        _open.clear()


def _begin_anew() -> None:
    """Forget all stores in a forked process: connections belong to the parent, and the lock may be held there."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _kind_of(scheme: str) -> Callable[[str], Store]:
    if scheme in KINDS:
        return KINDS[scheme]
    if scheme in ("file", "local"):
        raise UsageError(f"{scheme}://: name a file on this disk by its path alone, without {scheme}://")
    known = known_protocols()
    if scheme in known:
        return FsspecStore
    near = difflib.get_close_matches(scheme, (*KINDS, *known), n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}://?" if near else f" headrace reads {', '.join(f'{kind}://' for kind in KINDS)}."
    raise UsageError(f"{scheme}://: unknown kind of address.{hint}")
