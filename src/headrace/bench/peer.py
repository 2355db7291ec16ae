"""Peers of a benchmark: each runs in a process of its own, on the same corpus, and cannot spoil the rest."""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from headrace.data.corpus.readers import Reader
from headrace.data.corpus.segments import divide_corpus
from headrace.data.corpus.sources import Source
from headrace.data.prepare import prepare
from headrace.errors import ChildError, UsageError
from headrace.machine.children import Child

POLL_S = 0.2
CHILD = "headrace.bench.peers.child"

Say = Callable[[str, str], None]
"""A callback that gets the name of the peer at work and what it is doing, to be shown to whoever waits."""


@dataclass(frozen=True)
class Peer:
    """One side of a comparison."""

    name: str
    module: str
    """The module that a child process imports and measures."""
    package: str
    """The package whose version is printed, or whose pip line if it is missing."""
    num_workers: int = 2
    other_workers: int = 1
    is_headrace: bool = False
    makes_tokens: bool = False
    """Whether it tokenises while it serves: it is then timed over one whole pass, from the very start."""


@dataclass(frozen=True)
class Corpus:
    """The files that every peer works on."""

    folder: str
    text: str
    """One text file."""
    cache: str
    """headrace's cache of it."""
    tokens: str
    """Its tokens as one file of uint16, from which peers make what they need."""
    num_tokens: int


@dataclass
class Result:
    """The outcome for one peer; `values` are empty if it is missing or failed."""

    peer: str
    version: str = ""
    status: str = "ok"
    """ok, missing or failed."""
    message: str = ""
    """The install line, or the error."""
    values: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        flat = asdict(self)
        return {**flat.pop("values"), **flat}


def choose_peers(peers: Sequence[Peer], only: Sequence[str], skip: Sequence[str]) -> list[Peer]:
    """Select peers by name; a part of a name stands for all that have it."""
    for name in (*only, *skip):
        if not any(name in peer.name for peer in peers):
            raise UsageError(f"{name!r}: no such peer. Peers are {', '.join(peer.name for peer in peers)}")
    chosen = [peer for peer in peers if not only or any(name in peer.name for name in only)]
    return [peer for peer in chosen if not any(name in peer.name for name in skip)]


def begin(peer: Peer) -> Result:
    """Return a result with the peer's version, or with its install line if it is not installed."""
    try:
        return Result(peer.name, metadata.version(peer.package))
    except metadata.PackageNotFoundError:
        return Result(peer.name, "", "missing", f"pip install {peer.package}")


def run_peer(peer: Peer, kind: str, arguments: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Run one measurement of a peer, and add the most memory that it and its children had at once."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        Child([sys.executable, "-m", CHILD], folder=folder) as child,
    ):
        child.tell({"kind": kind, "module": peer.module, "arguments": arguments})
        peak_bytes, deadline = 0, time.monotonic() + timeout_s
        while not child.has_answer(POLL_S):
            peak_bytes = max(peak_bytes, _tree_bytes(child.pid))
            if time.monotonic() > deadline:
                raise ChildError(f"took longer than {timeout_s:.0f} s, and was ended")
        return {**child.answer(), "peak_memory_bytes": peak_bytes}


def _tree_bytes(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        return sum(_anonymous_bytes(process) for process in [root, *root.children(recursive=True)])
    except psutil.NoSuchProcess:
        return 0


def _anonymous_bytes(process: psutil.Process) -> int:
    """Return what a process has allocated, shared memory by its share; mapped files do not count."""
    try:
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="utf-8") as file:
            fields = dict(line.split(":", 1) for line in file.readlines()[1:])
        return sum(int(fields[name].split()[0]) << 10 for name in ("Pss_Anon", "Pss_Shmem"))
    except (OSError, KeyError, ProcessLookupError):
        with contextlib.suppress(psutil.Error):
            return int(process.memory_info().rss)
        return 0


@contextlib.contextmanager
def bench_corpus(sources: Sequence[Source], megabytes: float, tokenizer: str) -> Iterator[Corpus]:
    """Make a text of this size from shuffled lines of a corpus, its cache and its tokens; remove them at the end."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        text = Path(folder) / "corpus.txt"
        _write_text(text, sources, int(megabytes * 1e6))
        cache = prepare([text], tokenizer=tokenizer, out=Path(folder) / "cache")
        tokens = Path(folder) / "tokens.bin"
        if cache.dtype.itemsize != 2:
            raise UsageError(f"tokenizer {tokenizer}: peers are compared with a vocabulary of at most 65,536")
        with open(tokens, "wb") as file:
            for segment in range(len(cache.segments)):
                for part in cache.tokens(segment, 0, cache.entry(segment).num_tokens):
                    part.tofile(file)
        yield Corpus(folder, str(text), str(cache.path), str(tokens), cache.num_tokens)


def _write_text(path: Path, sources: Sequence[Source], nbytes: int) -> None:
    lines: list[bytes] = []
    for document in _documents(sources, nbytes):
        lines += document.splitlines(keepends=True)
    if not lines:
        raise UsageError("the corpus has no text: name files that have some")
    shuffle, written = random.Random(0).shuffle, 0
    with open(path, "wb") as file:
        while written < nbytes:  # the same lines again, in another order, if there is not enough text
            shuffle(lines)
            block = b"".join(lines)[: nbytes - written]
            file.write(block.decode(errors="ignore").encode())
            written += len(block)


def _documents(sources: Sequence[Source], nbytes: int) -> Iterable[bytes]:
    """Yield documents until there are enough bytes of them."""
    reader, total = Reader(sources), 0
    try:
        for segment in divide_corpus(sources):
            for chunk in reader.chunks(segment):
                for part in chunk.parts:
                    for batch in part.documents(Counter()):
                        for document in batch:
                            yield document
                            total += len(document)
                            if total >= nbytes:
                                return
    finally:
        reader.close()
