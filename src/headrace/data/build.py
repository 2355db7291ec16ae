"""The builder: worker threads that turn segments into sealed shards, in the order in which they are needed."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from headrace.data.cache import MANIFEST, PARTIAL, Cache, Entry
from headrace.data.cuts import PIECE_BYTES, split_document
from headrace.data.encoders import Encoder
from headrace.data.readers import DOCUMENT_OVERHEAD_BYTES, Chunk, Reader
from headrace.data.segments import Segment, plan_segments
from headrace.data.shards import MemberInfo, ShardInfo, TokenArray
from headrace.data.sources import Source
from headrace.data.tokenizers import Tokenizer, check_spec, load_tokenizer
from headrace.errors import CacheError, HeadraceError, UsageError
from headrace.files import digest

ENCODE_BYTES = 1 << 20
SAMPLE_BYTES = 8 << 20
SAMPLE_PLACES = 64
SAVE_SECONDS = 5.0
# A worker holds a chunk, its documents, a MiB of tokens, and its tokenizer with a cache of words.
WORKER_BYTES = 80 << 20
DEFAULT_MEMORY_BYTES = 1 << 30
MINIMUM_MEMORY_BYTES = 96 << 20


def check_memory_budget(budget: int | None) -> None:
    """Refuse a budget that tokenising cannot keep, before any work is done."""
    if budget is not None and budget < MINIMUM_MEMORY_BYTES:
        raise UsageError(
            f"memory_budget {budget / 2**20:.1f} MiB is too small: tokenising needs at least"
            f" {MINIMUM_MEMORY_BYTES >> 20} MiB"
        )


def plan_cache(sources: Sequence[Source], tokenizer: str | Tokenizer, path: Path) -> Cache:
    """A cache for a corpus in a folder. What an earlier build left there is found again."""
    if isinstance(tokenizer, str):
        check_spec(tokenizer)
    segments = plan_segments(sources)
    previous = _previous(path)
    tokenizer = _choose_tokenizer(tokenizer, previous, sources, segments, path)
    known = {} if previous is None else {s.fingerprint: i for i, s in enumerate(previous.segments)}
    entries = []
    for segment in segments:
        index = known.get(segment.fingerprint)
        entries.append(None if index is None or previous is None else _still_there(previous, index))
    cache = Cache(path, tokenizer, sources, segments, entries)
    if previous is None or not previous.is_same(cache):
        cache.shards.make()
        cache.save_tokenizer()
        cache.save(PARTIAL)
    return cache


def _previous(path: Path) -> Cache | None:
    # The partial manifest comes first: it is newer. The manifest is tried again after it, and both once more, because
    # another builder may be finishing at this moment.
    for name in (PARTIAL, MANIFEST, PARTIAL, MANIFEST):
        try:
            return Cache.load(path, name)
        except (FileNotFoundError, NotADirectoryError):
            continue
    if path.exists() and not path.is_dir():
        raise CacheError(f"{path}: is a file; a cache is a folder. Choose another with --out.")
    ours = {"shards", "tmp", "tokenizer.json", MANIFEST, PARTIAL}
    if path.is_dir() and any(name not in ours and not name.endswith(".tmp") for name in os.listdir(path)):
        raise CacheError(f"{path}: this folder holds something else than a token cache. Choose another with --out.")
    return None


def _still_there(previous: Cache, index: int) -> Entry | None:
    if not previous.has(index):
        return None
    entry = previous.entry(index)
    found = [previous.shards.find(shard.key) for shard in entry.shards]
    return entry if [info[0] if info else None for info in found] == list(entry.shards) else None


def _choose_tokenizer(
    asked: str | Tokenizer, previous: Cache | None, sources: Sequence[Source], segments: Sequence[Segment], path: Path
) -> Tokenizer:
    spec = asked if isinstance(asked, str) else asked.spec
    if previous is not None and previous.tokenizer.spec == spec and isinstance(asked, str):
        learned = spec in ("char", "byte") or spec.startswith("bpe:")
        if learned:  # a corpus that has grown keeps the tokenizer that it began with
            return previous.tokenizer
    tokenizer = load_tokenizer(asked, lambda: sample_documents(sources, segments)) if isinstance(asked, str) else asked
    if previous is not None and previous.tokenizer.hash != tokenizer.hash:
        raise CacheError(
            f"{path}: this cache was built with the tokenizer {previous.tokenizer.spec!r}"
            f" ({previous.tokenizer.hash[:8]}), not with {spec!r} ({tokenizer.hash[:8]})."
            " Choose another folder with --out, or delete this one."
        )
    return tokenizer


def sample_documents(sources: Sequence[Source], segments: Sequence[Segment]) -> Iterator[bytes]:
    """Some 8 MiB of text from all over the corpus, the same every time: what tokenizers learn from."""
    # Of a compressed file only the beginning can be reached quickly.
    reachable = [segment for segment in segments if segment.kind != "stream" or segment.ordinal == 0]
    chosen = reachable[:: max(1, len(reachable) // SAMPLE_PLACES)]
    share = SAMPLE_BYTES // len(chosen)
    reader = Reader(sources)
    try:
        for segment in chosen:
            if segment.kind == "range" and segment.end - segment.begin > share:
                segment = replace(segment, end=segment.begin + share, is_last=False)
            chunk = next(reader.chunks(segment), None)
            if chunk is not None:
                # A chunk that is more than the share is thinned out evenly, in whole pieces.
                every = max(1, round(chunk.nbytes / share))
                batches = (batch for member in chunk.members for batch in member.documents(Counter()))
                documents = itertools.chain.from_iterable(batches)
                pieces = (piece for document in documents for piece in split_document(document))
                yield from itertools.islice(pieces, 0, None, every)
    finally:
        reader.close()


@dataclass
class Progress:
    """How far a build is."""

    total_bytes: int
    done_bytes: int = 0
    tokenised_bytes: int = 0
    """Of these, what was not found in an earlier build."""
    tokenised_files: int = 0
    num_tokens: int = 0
    num_documents: int = 0


class Builder:
    """Fills a cache. Use as a context manager; `wait` returns when everything is sealed."""

    def __init__(
        self,
        cache: Cache,
        num_workers: int | None = None,
        memory_budget: int | None = None,
        in_background: bool = False,
    ) -> None:
        check_memory_budget(memory_budget)
        budget = memory_budget or DEFAULT_MEMORY_BYTES
        self.cache = cache
        wanted_workers = num_workers or os.cpu_count() or 1
        self.num_workers = max(1, min(wanted_workers, budget // WORKER_BYTES))
        self.cpu_seconds = 0.0
        self._memory_limit = int(budget * 0.85) + anonymous_bytes()
        self._in_background = in_background
        self._lock = threading.Lock()
        self._reader = Reader(cache.sources)
        self._reuse = _Reuse(cache)
        self._pending: list[int] = []
        self.set_order(range(len(cache.segments)))
        self._taken: set[int] = set()
        self._busy_streams: set[tuple[int, str]] = set()
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self._num_running = self.num_workers
        self.failure: BaseException | None = None
        self._saved_s = time.monotonic()
        self.progress = self._initial_progress()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Builder:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_order(self, order: Iterable[int]) -> None:
        """Which segments to build first; must name them all."""
        self._pending = [index for index in order if not self.cache.has(index)][::-1]

    def start(self) -> None:
        """Start the workers; with nothing to do, the cache is sealed at once."""
        if not self._pending:
            if (self.cache.path / PARTIAL).exists():
                self._seal()
            return
        for number in range(self.num_workers):
            thread = threading.Thread(target=self._work, name=f"headrace-build-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything is sealed (True) or the time is up (False). A failure is raised."""
        # Not Thread.join: interrupted by a signal, it would take a running thread for a finished one (Python 3.11).
        if self._threads and not self._finished.wait(timeout):
            return False
        if self.failure is not None:
            raise self.failure
        if not self.cache.is_complete:
            self.cache.require(range(len(self.cache.segments)))
        return True

    def close(self) -> None:
        """Stop after the segments that are being worked on; what is sealed stays, and a later start goes on from it."""
        self._stopping.set()
        if not self.cache.is_complete:
            self.cache.fail(CacheError(f"{self.cache.path}: the builder was closed before the cache was complete."))
        if threading.current_thread() in self._threads:
            return  # called by the garbage collector, anywhere in a worker: it must not wait for itself or for others
        for thread in self._threads:
            thread.join()
        self._reader.close()
        if not self.cache.is_complete and self.failure is None:
            self.cache.save(PARTIAL)

    def _initial_progress(self) -> Progress:
        cache = self.cache
        progress = Progress(total_bytes=cache.num_bytes)
        for index, segment in enumerate(cache.segments):
            if cache.has(index):
                entry = cache.entry(index)
                progress.done_bytes += segment.nbytes
                progress.num_tokens += entry.num_tokens
                progress.num_documents += entry.num_documents
        return progress

    def _work(self) -> None:
        if self._in_background:
            _lower_priority()
        encoder: Encoder | None = None
        began_s = time.thread_time()
        try:
            while not self._stopping.is_set():
                index = self._take()
                if index is None:
                    break
                if index < 0:  # all that is left belongs to files that others are reading
                    self._stopping.wait(0.005)
                    continue
                try:
                    encoder = encoder or self.cache.tokenizer.encoder()
                    self.cache.put(index, self._build(index, encoder))
                finally:
                    self._release(index)
                self._after_segment(index)
                if anonymous_bytes() > self._memory_limit:
                    encoder.recycle()
        except BaseException as problem:
            self._fail(problem)
        finally:
            with self._lock:
                self.cpu_seconds += time.thread_time() - began_s
                self._num_running -= 1
                if self._num_running == 0:
                    self._finished.set()

    def _take(self) -> int | None:
        """The next segment to build: one that somebody waits for, else the next in order. -1: none just now."""
        with self._lock:
            for wanted in self.cache.wanted():
                index = self._earliest(wanted)
                if self._may_take(index):
                    return self._claim(index)
            for place in range(len(self._pending) - 1, -1, -1):
                index = self._pending[place]
                if index in self._taken:
                    continue
                if self._may_take(index):
                    del self._pending[place]
                    return self._claim(index)
            self._pending = [index for index in self._pending if index not in self._taken]
            return -1 if self._pending else None

    def _earliest(self, index: int) -> int:
        """A compressed file is read front to back: whoever wants its middle gets its first missing segment built."""
        segments = self.cache.segments
        while segments[index].kind == "stream" and segments[index].ordinal > 0 and not self.cache.has(index - 1):
            index -= 1
        return index

    def _may_take(self, index: int) -> bool:
        segment = self.cache.segments[index]
        return index not in self._taken and not (
            segment.kind == "stream" and (segment.source, segment.path) in self._busy_streams
        )

    def _claim(self, index: int) -> int:
        self._taken.add(index)
        segment = self.cache.segments[index]
        if segment.kind == "stream":
            self._busy_streams.add((segment.source, segment.path))
        return index

    def _release(self, index: int) -> None:
        with self._lock:
            segment = self.cache.segments[index]
            self._busy_streams.discard((segment.source, segment.path))

    def _build(self, index: int, encoder: Encoder) -> Entry:
        segment = self.cache.segments[index]
        infos: list[ShardInfo] = []
        noticed: Counter[str] = Counter()
        for chunk in self._reader.chunks(segment):
            key = self._key(segment, chunk)
            found = self.cache.shards.find(key)
            if found is None:
                found = self._write(segment, chunk, key, encoder)
            info, chunk_noticed = found
            noticed.update(chunk_noticed)
            if info.num_tokens:
                infos.append(info)
        return Entry(tuple(infos), noticed)

    def _key(self, segment: Segment, chunk: Chunk) -> str:
        # Files of a group are named in the shard, so their names are part of what it is.
        names = [member.name for member in chunk.members] if segment.kind == "files" else []
        return digest("shard-1", self.cache.tokenizer.hash, *names, *(member.digest for member in chunk.members))

    def _write(self, segment: Segment, chunk: Chunk, key: str, encoder: Encoder) -> tuple[ShardInfo, Counter[str]]:
        """Tokens of a chunk: copied where an earlier shard has a file's, encoded otherwise."""
        members: list[MemberInfo] = []
        noticed: Counter[str] = Counter()
        num_fresh = 0
        with self.cache.shards.writer(key) as writer:
            for member in chunk.members:
                before = (writer.num_documents, writer.num_tokens)
                known = self._reuse.find(segment, member.digest)
                if known is not None:
                    writer.add(known.tokens, known.ends)
                    noticed.update(known.noticed)
                    own = known.noticed
                else:
                    num_fresh += 1
                    own = Counter()
                    encode_documents(member.documents(own), member.is_open, self.cache.tokenizer, encoder, writer.add)
                    noticed.update(own)
                counts = (writer.num_documents - before[0], writer.num_tokens - before[1])
                members.append(MemberInfo(member.name, member.digest, *counts, member.is_open, dict(own)))
            info = writer.seal(members)
        with self._lock:
            self.progress.tokenised_files += num_fresh
            self.progress.tokenised_bytes += int(chunk.nbytes * num_fresh / len(chunk.members))
        return info, noticed

    def _after_segment(self, index: int) -> None:
        entry = self.cache.entry(index)
        with self._lock:
            self.progress.done_bytes += self.cache.segments[index].nbytes
            self.progress.num_tokens += entry.num_tokens
            self.progress.num_documents += entry.num_documents
            if self.cache.is_complete:
                self._seal()
            elif time.monotonic() - self._saved_s > SAVE_SECONDS:
                self.cache.save(PARTIAL)
                self._saved_s = time.monotonic()

    def _seal(self) -> None:
        """The manifest last; then what only an older version of the corpus needed is removed."""
        cache = self.cache
        if sum(cache.entry(index).num_tokens for index in range(len(cache.segments))) == 0:
            raise CacheError(f"{cache.path}: the corpus has no text: every document is empty.")
        garbage = self._reuse.retire()
        cache.save(MANIFEST)
        (cache.path / PARTIAL).unlink(missing_ok=True)
        for key in garbage:
            cache.shards.remove(key)

    def _fail(self, problem: BaseException) -> None:
        if not isinstance(problem, HeadraceError | Exception):
            problem = CacheError(f"a tokenising worker ended: {problem!r}")
        self.failure = self.failure or problem
        self.cache.fail(problem)
        self._stopping.set()
        with contextlib.suppress(HeadraceError):
            self.cache.save(PARTIAL)


def encode_documents(
    documents: Iterable[list[bytes]],
    is_open: bool,
    tokenizer: Tokenizer,
    encoder: Encoder,
    put: Callable[[TokenArray, npt.NDArray[np.int64]], None],
    nbytes: int = ENCODE_BYTES,
) -> None:
    """Hand on the tokens of documents, with end-of-text after each (but not after the last, if it `is_open`), and where
    they end. Works through a MiB at a time, so that memory does not grow with the documents.
    """
    pieces: list[bytes] = []
    is_final: list[bool] = []
    size = 0
    for document in itertools.chain.from_iterable(documents):
        for part in [document] if len(document) <= PIECE_BYTES else split_document(document):
            if size >= nbytes:
                put(*_encode_pieces(pieces, is_final, tokenizer, encoder))
                pieces, is_final, size = [], [], 0
            pieces.append(part)
            is_final.append(False)
            size += len(part) + DOCUMENT_OVERHEAD_BYTES
        is_final[-1] = True
    if pieces:
        is_final[-1] = not is_open
        put(*_encode_pieces(pieces, is_final, tokenizer, encoder))


def _encode_pieces(
    pieces: list[bytes], is_final: list[bool], tokenizer: Tokenizer, encoder: Encoder
) -> tuple[TokenArray, npt.NDArray[np.int64]]:
    ids, offsets = encoder.encode(pieces)
    stops = offsets[1:][np.array(is_final, dtype=bool)]
    tokens = np.insert(ids.astype(tokenizer.dtype), stops, tokenizer.end_of_text_id)
    return tokens, stops + np.arange(1, len(stops) + 1)


@dataclass(frozen=True)
class _Known:
    tokens: TokenArray
    ends: npt.NDArray[np.int64]
    noticed: Counter[str]


class _Reuse:
    """Tokens of small files from groups of an earlier version of the corpus, found by the files' content."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._index: dict[str, tuple[ShardInfo, int]] | None = None
        try:
            self._old: Cache | None = Cache.load(cache.path, MANIFEST)
        except FileNotFoundError:
            self._old = None

    def find(self, segment: Segment, member_digest: str) -> _Known | None:
        if segment.kind != "files" or self._old is None:
            return None
        with self._lock:
            if self._index is None:
                self._index = self._read_index()
        found = self._index.get(member_digest)
        return None if found is None else self._tokens(*found)

    def _read_index(self) -> dict[str, tuple[ShardInfo, int]]:
        assert self._old is not None
        current = self._cache.unique_shards()
        index = {}
        for number, segment in enumerate(self._old.segments):
            for shard in self._old.entry(number).shards if segment.kind == "files" else ():
                if shard.key not in current and self._cache.shards.find(shard.key) is not None:
                    for place, member in enumerate(self._cache.shards.members(shard.key)):
                        if not member.is_open:
                            index[member.digest] = (shard, place)
        return index

    def _tokens(self, shard: ShardInfo, number: int) -> _Known:
        members = self._cache.shards.members(shard.key)
        start = sum(member.num_tokens for member in members[:number])
        stop = start + members[number].num_tokens
        ends = self._cache.shards.ends(shard)
        inside = ends[np.searchsorted(ends, start, "right") : np.searchsorted(ends, stop, "right")]
        tokens = self._cache.shards.tokens(shard)[start:stop] if stop > start else np.zeros(0, self._cache.shards.dtype)
        return _Known(tokens, inside - start, Counter(members[number].noticed))

    def retire(self) -> list[str]:
        """What only the version before needed is kept for whoever still uses it; what was kept so far can go."""
        if self._old is None:
            return []
        current = self._cache.unique_shards()
        before = self._old.unique_shards()
        self._cache.retired = sorted(before.keys() - current.keys())
        return sorted(set(self._old.retired) - current.keys() - before.keys())


def anonymous_bytes() -> int:
    """Memory of this process that is not a mapped file: what a budget is about."""
    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))


def _lower_priority() -> None:
    """Training goes first: on Linux a thread has a priority of its own, and a waiting consumer leaves the core idle."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
