"""The files of a remote source: addresses, folders and patterns become a sorted stream of readable files.

Names and order are those that the same files would have in a folder on this disk, so that the order of batches and the
ids of shards are the same wherever a corpus lies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from headrace.data.corpus.formats.registry import is_hidden, is_readable, shown_formats, why_unread
from headrace.data.corpus.remote.addresses import split_address
from headrace.data.corpus.remote.fetch import patiently
from headrace.data.corpus.remote.store import Entry
from headrace.data.corpus.sources import SourceFile
from headrace.errors import CorpusError, UsageError

_MAGIC = re.compile(r"[*?[]")
_CACHE_NAMES = ({"manifest.json", "tokenizer.json"}, {"partial.json", "tokenizer.json"})
_RUN_NAMES = ({"environment.json", "config.json"},)


def iterate_remote(address: str, skipped: Counter[str], root_length: int | None = None) -> Iterator[SourceFile]:
    """Yield the readable files at an address, in sorted order.

    `root_length`: the length of the part of their paths that says where the corpus lies, if it is not this address.
    """
    if _MAGIC.search(split_address(address).store):
        raise UsageError(f"{address}: a pattern begins after the name of the bucket.")
    if not patiently(address, lambda store: store.can_list):
        yield from _kept(address, [_only_file(address)], skipped, address.rfind("/") + 1, root_length)
        return
    parts = split_address(address)
    if _MAGIC.search(parts.key):
        yield from _matches(address, skipped, root_length)
        return
    entry = None if parts.key in ("", *_ending_slash(parts.key)) else _look_up(address)
    if entry is not None:
        yield from _kept(address, [entry], skipped, address.rfind("/") + 1, root_length)
        return
    folder = address.rstrip("/") + "/"
    entries = _without_own_output(list(_list(folder)), skipped)
    key = split_address(folder).key
    readable = []
    for entry in sorted(entries, key=lambda entry: _walking_order(entry.key[len(key) :])):
        *folders, name = entry.key[len(key) :].split("/")
        if not name or any(map(is_hidden, [*folders, name])):
            continue
        if is_readable(name):
            readable.append(entry)
        else:
            skipped[why_unread(name)] += 1
    if not readable:
        reason = "no readable file in this folder" if entries else "no such file or folder"
        raise CorpusError(f"{address}: {reason}. headrace reads {shown_formats()}.")
    yield from _kept(address, readable, skipped, len(folder), root_length)


def _only_file(address: str) -> Entry:
    """Look up a file of a web server, which can list nothing."""
    if address.endswith("/"):
        raise UsageError(f"{address}: a web server does not list its files. Name each file.")
    entry = _look_up(address)
    if entry is None:
        hint = " Patterns need a list of files, which web servers do not give." if "*" in address else ""
        raise CorpusError(f"{address}: no such file (404). Check the address.{hint}")
    return entry


def _matches(address: str, skipped: Counter[str], root_length: int | None) -> Iterator[SourceFile]:
    """Yield the files that match a pattern, in the order of their names."""
    found = _MAGIC.search(address, address.index("://") + 3)
    assert found is not None
    folder = address[: address.rfind("/", 0, found.start()) + 1]
    pattern = re.compile(glob_pattern(split_address(address).key))
    entries = [entry for entry in _list(folder) if pattern.fullmatch(entry.key)]
    if not entries:
        raise CorpusError(f"{address}: no file matches this pattern.")
    entries = _without_own_output(entries, skipped)
    yield from _kept(address, sorted(entries, key=lambda entry: entry.key), skipped, len(folder), root_length)


def glob_pattern(glob: str) -> str:
    """Return a pattern of Python's `glob`, with ** for any folders, as a regular expression.

    >>> bool(re.fullmatch(glob_pattern("a/**/*.txt"), "a/b/c.txt")), bool(re.fullmatch(glob_pattern("*.txt"), ".x.txt"))
    (True, False)
    """
    result = ""
    parts = glob.split("/")
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**":
            result += r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if is_last else "")
            continue
        result += ("" if part.startswith(".") else r"(?!\.)") if _MAGIC.search(part) else ""
        result += _part_pattern(part) + ("" if is_last else "/")
    return result


def _part_pattern(part: str) -> str:
    result = ""
    rest = part
    while rest:
        chosen = re.match(r"\[(!?)([^\]][^\]]*|\][^\]]*)\]", rest)
        if chosen:
            inner = chosen[2].replace("\\", r"\\").replace("^", r"\^").replace("[", r"\[")
            result += f"[{'^/' if chosen[1] else ''}{inner}]"
            rest = rest[chosen.end() :]
            continue
        result += {"*": "[^/]*", "?": "[^/]"}.get(rest[0]) or re.escape(rest[0])
        rest = rest[1:]
    return result


def _walking_order(name: str) -> list[tuple[bool, str]]:
    """Return a key that sorts the files of a folder before those of the folders in it."""
    *folders, file = name.split("/")
    return [*((True, folder) for folder in folders), (False, file)]


def _without_own_output(entries: list[Entry], skipped: Counter[str]) -> list[Entry]:
    """Leave out token caches and run directories of headrace, recognised by the names of the files in them."""
    names: dict[str, set[str]] = {}
    for entry in entries:
        folder, _, name = entry.key.rpartition("/")
        names.setdefault(folder, set()).add(name)
    own = {}
    for folder, inside in names.items():
        if any(mark <= inside for mark in _CACHE_NAMES):
            own[f"{folder}/"] = "token cache"
        elif any(mark <= inside for mark in _RUN_NAMES):
            own[f"{folder}/"] = "run directory"
    for kind in own.values():
        skipped[f"folder(s) with a {kind} of headrace"] += 1
    prefixes = tuple(own)
    return [entry for entry in entries if not entry.key.startswith(prefixes)] if prefixes else entries


def _kept(
    address: str, entries: list[Entry], skipped: Counter[str], own_root: int, root_length: int | None
) -> Iterator[SourceFile]:
    store = split_address(address).store
    between = "" if store.endswith("/") else "/"
    for entry in entries:
        if entry.size == 0:
            skipped["empty file(s)"] += 1
            continue
        length = own_root if root_length is None else root_length
        yield SourceFile(f"{store}{between}{entry.key}", length, entry.size, 0, 0, 0, entry.version)


def _look_up(address: str) -> Entry | None:
    key = split_address(address).key
    return patiently(address, lambda store: store.look_up(key))


def _list(folder: str) -> list[Entry]:
    key = split_address(folder).key
    return patiently(folder, lambda store: list(store.list(key)))


def _ending_slash(key: str) -> tuple[str, ...]:
    return (key,) if key.endswith("/") else ()
