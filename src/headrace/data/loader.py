"""The loader: batches in exact order from worker threads, through a bounded queue, that never make training wait."""

from __future__ import annotations

import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from headrace.data.arguments import check_arguments, queue_limit, source_weights, whole
from headrace.data.batch import Assembler, Batch, row_bytes
from headrace.data.cache.build import Builder, check_memory_budget
from headrace.data.cache.manifest import Cache
from headrace.data.cache.open import default_cache_dir, plan_cache
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import as_sources
from headrace.data.explain.ledger import Ledger, pass_ledger
from headrace.data.explain.trace import RowTrace, Tracer
from headrace.data.order.mixture import Mixture
from headrace.data.order.packing import DocumentPacking
from headrace.data.order.split import Part, Split
from headrace.data.order.stream import Packing, Stream
from headrace.data.order.windows import WindowPacking
from headrace.data.prefetch import Inline, Make, Prefetcher
from headrace.data.sample import Sample, Sampler
from headrace.data.tokens.special_tokens import SpecialTokensInText
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.errors import StateError, UsageError, WorkerError
from headrace.files import digest

STATE_VERSION = 2
DEFAULT_TOKENIZER = "bpe:16000"

Transform = Callable[[Batch, np.random.Generator], Batch]


@dataclass
class Counters:
    """What the loader has done so far. `wait` is the time that the consumer really stood still for a batch."""

    batches: int = 0
    tokens: int = 0
    wait_s: float = 0.0
    last_wait_s: float = 0.0
    elapsed_s: float = 0.0
    wait_percent: float = 0.0
    queue_depth: int = 0
    """Batches that are ready."""
    queue_limit: int = 0
    """Batches that may be ready; grows by itself with `prefetch_batches: auto`."""
    bytes_held: int = 0
    worker_cpu_s: float = 0.0
    """Processor time of the workers, tokenising included."""


class Loader:
    """An endless, exactly reproducible stream of training batches.

    >>> with Loader("cache", batch_size=32, sequence_length=256, seed=0) as loader:   # doctest: +SKIP
    ...     for batch in loader:
    ...         train_on(batch.inputs, batch.targets)

    The first argument is a cache (an object or its folder), or raw text: paths, globs, `Source`s. Raw text is tokenised
    while it is served, into a cache that makes the next start instant; the batches are the same either way, and the
    same for any number of workers, any prefetch depth, and (put together) any number of ranks.
    """

    def __init__(
        self,
        cache_or_sources: Any,
        batch_size: int,
        sequence_length: int,
        seed: int = 0,
        *,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 2,
        prefetch_batches: int | Literal["auto"] = "auto",
        queue_capacity: int | None = None,
        max_sequences_in_memory: int | None = None,
        memory_budget: int | None = None,
        shuffle: bool = True,
        packing: Literal["stream", "document"] = "stream",
        split: Part = "all",
        validation_fraction: float = 0.0,
        weights: Sequence[float] | None = None,
        skip: Sequence[str] = (),
        transform: Transform | None = None,
        tokenizer: str | Tokenizer = DEFAULT_TOKENIZER,
        special_tokens_in_text: SpecialTokensInText = "ordinary",
        cache_dir: str | Path | None = None,
    ) -> None:
        if queue_capacity is not None:  # another name of the same thing
            if prefetch_batches not in ("auto", queue_capacity):
                raise UsageError("prefetch_batches and queue_capacity are two names of one setting: give one of them")
            prefetch_batches = queue_capacity
        batch_size, sequence_length, seed = whole(batch_size), whole(sequence_length), whole(seed)
        rank, world_size, num_workers = whole(rank), whole(world_size), whole(num_workers)
        check_arguments(batch_size, sequence_length, rank, world_size, num_workers, prefetch_batches, packing)
        if weights is not None and isinstance(cache_or_sources, (list, tuple)):
            cache_or_sources = as_sources(cache_or_sources, apart=True)  # a weight is a source's
        self.cache, self._builder = _open_or_build(
            cache_or_sources, tokenizer, special_tokens_in_text, cache_dir, num_workers, memory_budget
        )
        self.batch_size, self.sequence_length, self.seed = batch_size, sequence_length, seed
        self.rank, self.world_size = rank, world_size
        self.row_bytes = row_bytes(sequence_length, self.cache.dtype, packing == "document")
        try:
            weights = source_weights(self.cache, weights)
            make_packing = WindowPacking if packing == "stream" else DocumentPacking
            part = Split(self.cache, split, validation_fraction)
            self._sampler = Sampler(self.cache, part, make_packing, sequence_length, weights)
            self._streams = self._make_streams(weights, shuffle, make_packing, part)
            mixture = Mixture(weights, seed) if weights else None
            self._assembler = Assembler(self._streams, mixture, batch_size, sequence_length, rank, world_size)
            self._identity = {
                "corpus": self.cache.corpus_hash,
                "tokenizer": self.cache.tokenizer.hash[:16],
                "sequence_length": sequence_length,
                "batch_size": batch_size,
                "seed": seed,
                "shuffle": shuffle,
                "packing": packing,
                "split": f"{split} {validation_fraction:g}",
                "mixture": digest(repr(weights))[:8] if weights else "",
            }
            make = _maker(self.cache, self._assembler, transform, seed, rank)
            limit = queue_limit(
                batch_size // world_size, self.row_bytes, prefetch_batches, max_sequences_in_memory, memory_budget
            )
            self._order = self._build_order()
            if self._builder is not None:
                self._builder.set_order(self._order)
                self._builder.start()
            self._skip: tuple[str, ...] = ()
            self._set_skip(skip)  # names can only be looked up in what is tokenised
            self._feed = _make_feed(make, num_workers, prefetch_batches, limit)
        except BaseException:
            if self._builder is not None:
                self._builder.close()
            raise
        self._counters = Counters()
        self._step = 0
        self._began_s: float | None = None
        self._has_said = False
        self._known_text = (0, "")
        self._taking = threading.RLock()
        self._process = os.getpid()
        # Threads end even when nobody closes the loader. The finalizer must not refer to it.
        self._finalizer = weakref.finalize(self, _close, self._feed, self._builder, self._process)

    # Iterating

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch; of several threads that ask, each gets another one."""
        self._refuse_fork()
        with self._taking:
            asked_s = time.perf_counter()
            if self._began_s is None:
                self._began_s = asked_s
            batch = self._feed.take(self._step)
            self._step += 1
            waited_s = time.perf_counter() - asked_s
            counters = self._counters
            counters.batches += 1
            counters.tokens += batch.num_tokens
            counters.wait_s += waited_s
            counters.last_wait_s = waited_s
            return batch

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call_while_waiting(self, act: Callable[[], None]) -> None:
        """Call this a few times a second while a batch is waited for. If it raises, the batch is still the next."""
        self._feed.while_waiting = act

    def close(self) -> None:
        """Stop all threads, wherever they are. Safe to call at any time, and more than once.

        If everything could be served but the cache could not be sealed (a full disk), this is where it is said.
        """
        self._finalizer()
        failure = self._builder.failure if self._builder is not None else None
        if failure is not None and self.cache.is_complete and not self._has_said:
            self._has_said = True
            raise failure

    # State

    @property
    def step(self) -> int:
        """The step of the next batch."""
        return self._step

    def state(self, step: int | None = None) -> dict[str, Any]:
        """Where the stream is, or is at a `step`: a few integers and hashes, under 1 KiB, ready for JSON."""
        step = self._step if step is None else step
        state = {"version": STATE_VERSION, "step": step, "skip": list(self._skip), **self._identity}
        count, content = self._known_text
        known = count
        while known < len(self._order) and self.cache.has(self._order[known]):
            known += 1
        if known > count:
            count, content = self._known_text = known, self.cache.content_hash(self._order[:known])
        return {**state, "segments": count, "content": content}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state()` was taken; the number of ranks and workers may have changed since."""
        if state.get("version") != STATE_VERSION:
            raise StateError(
                f"loader state version {state.get('version')!r}; this headrace reads {STATE_VERSION}. Versions differ"
                " in the order of batches, so this run cannot go on exactly: resume it with the headrace that began it,"
                " or start a new one."
            )
        for key, mine in self._identity.items():
            if state.get(key) != mine:
                raise StateError(
                    f"this state belongs to another stream: {key} was {state.get(key)!r} and is {mine!r} now."
                    " Resume with what the run was started with."
                )
        count = int(state["segments"])
        if count and state["content"] != self.cache.content_hash(self._order[:count]):
            raise StateError("this state belongs to another corpus: the files have the same sizes, but another text.")
        if list(state.get("skip", [])) != list(self._skip):
            self._set_skip(state["skip"])
        self.seek(int(state["step"]))

    def seek(self, step: int) -> None:
        """Go to any step."""
        if step < 0:
            raise UsageError(f"step {step}: steps count from 0")
        self._refuse_fork()
        with self._taking:
            self._step = step
            self._feed.seek(step)

    # Explaining

    def counters(self) -> Counters:
        """What has been served, waited for and held so far."""
        counters = self._counters
        if self._began_s is not None:
            counters.elapsed_s = time.perf_counter() - self._began_s
            counters.wait_percent = 100 * counters.wait_s / max(counters.elapsed_s, 1e-9)
        counters.queue_depth, counters.queue_limit, counters.bytes_held = self._feed.holding()
        counters.worker_cpu_s = self._feed.cpu_seconds() + (self._builder.cpu_seconds if self._builder else 0.0)
        return Counters(**asdict(counters))

    def explain(self, step: int, rows: Sequence[int] | None = None) -> list[RowTrace]:
        """Which source, file, document and tokens the rows of a batch came from, with their text."""
        wanted = range(self.batch_size) if rows is None else rows
        tracer = Tracer(self.cache)
        return [tracer.row(row, self._assembler.trace(step * self.batch_size + row)) for row in wanted]

    def ledger(self) -> list[Ledger]:
        """For each stream: what becomes of every token of the corpus in one pass. The sums are exact."""
        return [pass_ledger(stream) for stream in self._streams]

    def sample(self, max_tokens: int = 0) -> list[Sample]:
        """Draw rows to evaluate on, by source: about so many tokens (0: all), every row at most once.

        They come from all over this part of the corpus, and are the same whatever the seed of the loader.
        """
        return self._sampler.draw(max_tokens)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the corpus (of a mixture: over its first source to end)."""
        rows = [stream.packing.num_rows(stream.epoch_size()) for stream in self._streams]
        if self._assembler.mixture is None:
            return rows[0] // self.batch_size
        shares = self._assembler.mixture.shares
        return int(min(count / share for count, share in zip(rows, shares, strict=True))) // self.batch_size

    def _make_streams(
        self, weights: Sequence[float] | None, shuffle: bool, make_packing: Callable[[int], Packing], split: Split
    ) -> list[Stream]:
        owners = np.array([segment.source for segment in self.cache.segments])
        groups = [np.arange(len(owners))]
        if weights:
            groups = [np.flatnonzero(owners == source) for source in range(len(self.cache.sources))]
        return [
            Stream(
                self.cache,
                group,
                split,
                make_packing(self.sequence_length),
                seed=self.seed,
                shuffle=shuffle,
                first_block_bytes=current_scale().first_block_bytes // len(groups),
            )
            for group in groups
        ]

    def _set_skip(self, names: Sequence[str]) -> None:
        names = tuple(dict.fromkeys(names))
        skipped: dict[int, list[tuple[int, int]]] = {}
        tracer = Tracer(self.cache)
        for name in names:
            segment, start, stop = tracer.find(name)
            skipped.setdefault(segment, []).append((start, stop))
        self._skip = names
        for stream in self._streams:
            stream.set_skipped(skipped)

    def _refuse_fork(self) -> None:
        """Threads do not come along when a process is forked, and their locks may be held for ever."""
        if os.getpid() == self._process:
            return
        if self._feed.is_lost or (self._builder is not None and not self.cache.is_complete):
            raise UsageError(
                f"this loader's threads belong to process {self._process} and did not come along when it was forked."
                " Make a loader in each process, or fork before the first batch of a loader over a finished cache."
            )
        self._process = os.getpid()  # nothing had been started yet

    def _build_order(self) -> list[int]:
        """Segments in the order in which the first pass will need them; sources of a mixture take turns."""
        orders = [list(stream.build_order()) for stream in self._streams]
        order: list[int] = []
        for turn in range(max(map(len, orders))):
            for blocks in orders:
                if turn < len(blocks):
                    order += blocks[turn].tolist()
        return order + sorted(set(range(len(self.cache.segments))) - set(order))


def _maker(cache: Cache, assembler: Assembler, transform: Transform | None, seed: int, rank: int) -> Make:
    """What workers run. It must not refer to the loader, or a forgotten loader would never end."""

    def make(step: int, count: int) -> list[Batch]:
        cache.check_unchanged()
        batches = assembler.batches(step, count)
        cache.check_unchanged()  # nor while they were read
        if transform is None:
            return batches
        # A generator per step: what a transform draws does not depend on which worker runs it.
        return [_transformed(transform, batch, [seed % 2**64, batch.step, rank]) for batch in batches]

    return make


def _transformed(transform: Transform, batch: Batch, seed: list[int]) -> Batch:
    try:
        return transform(batch, np.random.default_rng(seed))
    except StopIteration as problem:  # to whoever iterates over the loader it would look like its end
        place = traceback.extract_tb(problem.__traceback__)[-1]
        raise WorkerError(
            f"the transform raised StopIteration at step {batch.step} ({place.filename}:{place.lineno}): an iterator"
            " that it takes from has ended. Begin it anew there, or give next() a default."
        ) from problem


def _make_feed(
    make: Make, num_workers: int, prefetch_batches: int | Literal["auto"], limit: int
) -> Inline | Prefetcher:
    if prefetch_batches == 0 or num_workers == 0:
        return Inline(make)
    if prefetch_batches == "auto":
        return Prefetcher(make, num_workers, min(2, limit), grow_to=limit)
    return Prefetcher(make, num_workers, limit, grow_to=limit)


def _open_or_build(
    given: Any,
    tokenizer: str | Tokenizer,
    special_tokens_in_text: SpecialTokensInText,
    cache_dir: str | Path | None,
    num_workers: int,
    memory_budget: int | None,
) -> tuple[Cache, Builder | None]:
    if isinstance(given, Cache):
        return given, None
    if isinstance(given, (str, os.PathLike)) and Cache.is_cache(Path(given)):
        return Cache.open(Path(given)), None
    check_memory_budget(memory_budget)
    sources = as_sources(given)
    path = default_cache_dir(sources, tokenizer, special_tokens_in_text) if cache_dir is None else Path(cache_dir)
    cache = plan_cache(sources, tokenizer, path, special_tokens_in_text)
    return cache, Builder(cache, max(num_workers, 1), memory_budget, in_background=True)


def _close(feed: Inline | Prefetcher, builder: Builder | None, process: int) -> None:
    feed.stop()
    if builder is not None and os.getpid() == process:
        builder.close()  # wakes workers that wait for tokens
    feed.join()
