"""The files of a source: paths, folders and globs become a sorted stream of readable files.

Folders that headrace wrote itself (token caches, run directories) are not text, wherever they lie. Links to folders are
followed, unless what they lead to is read in any case.
"""

from __future__ import annotations

import difflib
import functools
import glob
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from headrace.data.corpus.datasets.folders import DESCRIPTIONS, saved_files, saved_splits
from headrace.data.corpus.datasets.objects import SCHEME, require_table
from headrace.data.corpus.formats.arrow.dataset import text_bytes
from headrace.data.corpus.formats.registry import is_hidden, is_readable, shown_formats, why_unread
from headrace.data.corpus.remote.addresses import is_remote
from headrace.data.corpus.remote.listing import iterate_remote
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError

# Folders of the standard library that are not the library: installed packages, caches, and tests, which hold files
# that are broken on purpose.
_STDLIB_EXCLUDED = frozenset(["site-packages", "dist-packages", "test", "tests", "idle_test", "config"])
# Files that only headrace writes, each with a key that is always in it.
_OWN_OUTPUT = {
    "manifest.json": ("token cache", b'"format":"headrace-cache"'),
    "partial.json": ("token cache", b'"format":"headrace-cache"'),
    "environment.json": ("run directory", b'"peak_flops"'),
}
_MARKER_BYTES = 64 << 10
_MAGIC = re.compile(r"[*?[]")
_CRUSHED = re.compile(r"[a-z][a-z0-9]+:/[^/]")  # what pathlib makes of an address


def iterate_files(source: Source, skipped: Counter[str] | None = None) -> Iterator[SourceFile]:
    """Yield every readable file of a source, in sorted order, each once. Nothing is held, however many there are.

    What is left out is counted in `skipped`, by reason.
    """
    skipped = Counter() if skipped is None else skipped
    seen: set[tuple[int, int]] = set()
    addresses: set[str] = set()
    root = _common_root(source.paths) if len(source.paths) > 1 else None
    for path in source.paths:
        if path.startswith(SCHEME):
            yield _dataset_as_file(path, source.text_field)
            continue
        if is_remote(path):
            for file in iterate_remote(path, skipped, None if root is None else len(root)):
                if file.path not in addresses:
                    addresses.add(file.path)
                    yield file
            continue
        for name, root_length in _expand(os.path.expanduser(path), skipped):
            try:
                status = os.stat(name)
            except OSError as problem:
                raise CorpusError(f"{name}: cannot be read ({problem.strerror}).") from None
            if len(source.paths) > 1:  # one folder or glob names nothing twice
                identity = (status.st_dev, status.st_ino)
                if identity in seen:
                    continue
                seen.add(identity)
            if status.st_size == 0:
                skipped["empty file(s)"] += 1
                continue
            yield SourceFile.from_stat(name, root_length if root is None else len(root), status)


def _dataset_as_file(path: str, column: str) -> SourceFile:
    """List a dataset of this process like a file: its size is that of its text."""
    dataset = require_table(path)
    return SourceFile(path, 0, text_bytes(dataset, column), 0, 0, dataset.state)


def is_in_folder(source: Source, file: SourceFile) -> bool:
    """Check whether a file of a source was found in a folder, and not named or matched by a glob."""
    if file.is_remote:
        return any(file.path.startswith(path.rstrip("/") + "/") for path in source.paths)
    folders = (path for path in map(os.path.expanduser, source.paths) if os.path.isdir(path))
    return any(_contains(folder, file.path) for folder in folders)


def own_output(folder: str) -> str:
    """Return the kind of folder that headrace wrote: "token cache" or "run directory"; "" for any other folder."""
    for name, (kind, key) in _OWN_OUTPUT.items():
        try:
            with open(os.path.join(folder, name), "rb") as file:
                if key in file.read(_MARKER_BYTES):
                    return kind
        except OSError:
            continue
    return ""


def _common_root(paths: Sequence[str]) -> str:
    """Return the folder that paths given together are named within, so that their small files can be read together."""
    places = [_MAGIC.split(path if is_remote(path) else os.path.expanduser(path), maxsplit=1)[0] for path in paths]
    low, high = min(places), max(places)
    shared = next((at for at, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), len(low))
    return low[: low.rfind("/", 0, shared) + 1]


def _expand(path: str, skipped: Counter[str]) -> Iterator[tuple[str, int]]:
    saved = saved_files(path) if os.path.isdir(path) else None
    if saved is not None:
        yield from ((name, len(os.path.join(os.path.dirname(name), ""))) for name in saved)
    elif os.path.isdir(path):
        found = False
        for name in _walk(path, skipped):
            found = True
            yield name, len(os.path.join(path, ""))
        if not found:
            raise CorpusError(f"{path}: no readable file in this folder. headrace reads {shown_formats()}.")
    elif os.path.exists(path):
        yield path, len(os.path.dirname(path)) + 1 if os.path.dirname(path) else 0
    elif glob.has_magic(path):
        root = len(_MAGIC.split(path, maxsplit=1)[0].rpartition("/")[0]) + 1
        # A pattern with several ** finds some names more than once.
        names = sorted({name for name in glob.iglob(path, recursive=True) if os.path.isfile(name)})
        if not names:
            raise CorpusError(f"{path}: no file matches this pattern.")
        root = root if "/" in path else 0
        yield from ((name, root) for name in _without_own_output(names, path[:root], skipped))
    else:
        hint = " An address such as s3://… is given as text, not as a Path." if _CRUSHED.match(path) else _nearest(path)
        raise CorpusError(f"{path}: no such file or folder.{hint}")


def _without_own_output(names: list[str], root: str, skipped: Counter[str]) -> Iterator[str]:
    @functools.cache
    def kind_of(folder: str) -> str:
        """Return the kind of folder that headrace wrote, if it is this folder or one around it."""
        if len(folder) < len(root) or folder == os.path.dirname(folder):
            return ""
        return own_output(folder) or kind_of(os.path.dirname(folder))

    for name in names:
        kind = kind_of(os.path.dirname(name))
        if kind:
            skipped[f"file(s) in a {kind} of headrace"] += 1
        else:
            yield name


def _walk(folder: str, skipped: Counter[str]) -> Iterator[str]:
    kind = own_output(folder)
    if kind:
        raise CorpusError(f"{folder}: a {kind} of headrace, not text. Name the folder that holds the text itself.")
    excluded = _STDLIB_EXCLUDED if folder == sysconfig.get_paths()["stdlib"] else frozenset[str]()
    trees = [os.path.realpath(folder)]  # this folder, and the folders that links in it lead to
    for root, folders, names in os.walk(folder, onerror=_refuse_folder, followlinks=True):
        folders[:] = sorted(
            name
            for name in folders
            if not is_hidden(name)
            and not _is_excluded(name, excluded)
            and _is_text_folder(os.path.join(root, name), trees, skipped)
        )
        for name in sorted(names):
            if is_hidden(name):
                continue
            if name in DESCRIPTIONS and any(other.endswith(".arrow") for other in names):
                skipped["description(s) of a dataset"] += 1
            elif is_readable(name):
                yield os.path.join(root, name)
            else:
                skipped[why_unread(name)] += 1


def _is_text_folder(folder: str, trees: list[str], skipped: Counter[str]) -> bool:
    kind = own_output(folder)
    if kind:
        if not os.path.islink(folder):  # a link such as runs/last leads to a folder that is counted itself
            skipped[f"folder(s) with a {kind} of headrace"] += 1
        return False
    if saved_splits(folder):
        raise CorpusError(
            f"{folder}: a dataset with several splits, inside another folder. Name it itself, or one of its splits, so"
            " that its test split is not trained on."
        )
    if os.path.islink(folder):
        target = os.path.realpath(folder)
        if any(_contains(tree, target) or _contains(target, tree) for tree in trees):
            skipped["link(s) to a folder that is read already"] += 1
            return False
        trees.append(target)
    return True


def _contains(tree: str, path: str) -> bool:
    return os.path.join(path, "").startswith(os.path.join(tree, ""))


def _refuse_folder(problem: OSError) -> NoReturn:
    raise CorpusError(f"{problem.filename}: cannot be read ({problem.strerror}).")


def _is_excluded(folder: str, excluded: frozenset[str]) -> bool:
    return folder in excluded or any(folder.startswith(f"{name}-") for name in excluded)


def _nearest(path: str) -> str:
    parent = Path(path).parent
    if not parent.is_dir():
        return f" The folder {parent} does not exist either."
    near = difflib.get_close_matches(Path(path).name, os.listdir(parent), n=1)
    return f" Did you mean {parent / near[0]}?" if near else ""
