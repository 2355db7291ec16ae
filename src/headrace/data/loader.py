"""The loader: batches in exact order, made by worker threads ahead of training and held in a bounded queue."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from headrace.activity import Activity, ignore
from headrace.data.arguments import check_arguments, queue_limit, whole
from headrace.data.batch import Batch, row_bytes
from headrace.data.batch_order import BatchOrder
from headrace.data.cache.build import Builder
from headrace.data.config import DEFAULTS, LoaderOptions
from headrace.data.corpus.sources import as_sources
from headrace.data.counters import Counters
from headrace.data.explain.ledger import Ledger, pass_ledger
from headrace.data.explain.trace import RowTrace, Tracer
from headrace.data.making import Transform, make_batches
from headrace.data.mixing import GivenWeights, mixture_plans
from headrace.data.order.packing import PackingName
from headrace.data.order.split import Part
from headrace.data.prefetch import Inline, Prefetcher, make_queue
from headrace.data.prepare import open_or_build
from headrace.data.sample import Sample
from headrace.data.selection.options import Deduplicate
from headrace.data.state import StateKeeper
from headrace.data.tokens.special_tokens import SpecialTokensInText
from headrace.data.tokens.tokenizers import DEFAULT_TOKENIZER, Tokenizer
from headrace.errors import UsageError


class Loader:
    """An endless, exactly reproducible stream of training batches.

    >>> with Loader("cache", batch_size=32, sequence_length=256, seed=0) as loader:   # doctest: +SKIP
    ...     for batch in loader:
    ...         train_on(batch.inputs, batch.targets)

    `for batch in loader.epoch()` ends after one pass. The first argument is a cache (an object or its folder), or raw
    text: paths, globs, `Source`s. Raw text is tokenised while it is served, into a cache that makes the next start
    instant; the batches are the same either way, and the same for any number of workers, any prefetch depth, and (put
    together) any number of ranks. docs/data.md lists all arguments; data/config.py explains the options among them.
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
        num_workers: int = DEFAULTS.num_workers,
        prefetch_batches: int | Literal["auto"] = DEFAULTS.prefetch_batches,
        queue_capacity: int | None = DEFAULTS.queue_capacity,
        max_sequences_in_memory: int | None = DEFAULTS.max_sequences_in_memory,
        memory_budget: int | str | None = DEFAULTS.memory_budget,
        shuffle: bool = DEFAULTS.shuffle,
        packing: PackingName = DEFAULTS.packing,
        special_tokens_in_text: SpecialTokensInText = DEFAULTS.special_tokens_in_text,
        deduplicate: Deduplicate = DEFAULTS.deduplicate,
        near_threshold: float = DEFAULTS.near_threshold,
        keep: Callable[[str], object] | None = None,
        keep_name: str = "",
        split: Part = "all",
        validation_fraction: float = 0.0,
        weights: GivenWeights | None = None,
        earlier_weights: Sequence[tuple[int, Sequence[Any] | None]] = (),
        skip: Sequence[str] = (),
        transform: Transform | None = None,
        tokenizer: str | Tokenizer = DEFAULT_TOKENIZER,
        cache_dir: str | Path | None = None,
        activity: Activity = ignore,
    ) -> None:
        options = LoaderOptions.checked(
            num_workers=whole(num_workers),
            prefetch_batches=whole(prefetch_batches),
            queue_capacity=whole(queue_capacity),
            max_sequences_in_memory=whole(max_sequences_in_memory),
            memory_budget=whole(memory_budget),
            shuffle=shuffle,
            packing=packing,
            special_tokens_in_text=special_tokens_in_text,
            deduplicate=deduplicate,
            near_threshold=near_threshold,
        )
        batch_size, sequence_length, seed = whole(batch_size), whole(sequence_length), whole(seed)
        rank, world_size = whole(rank), whole(world_size)
        check_arguments(batch_size, sequence_length, rank, world_size)
        if weights is not None and isinstance(cache_or_sources, (list, tuple)):
            cache_or_sources = as_sources(cache_or_sources, apart=True)  # one source per path: each has a weight
        chosen = (cache_or_sources, tokenizer, cache_dir, options, activity, keep, keep_name)
        self.cache, self._builder = open_or_build(*chosen)
        self.batch_size, self.sequence_length, self.seed = batch_size, sequence_length, seed
        self.rank, self.world_size = rank, world_size
        self.row_bytes = row_bytes(sequence_length, self.cache.dtype, packing == "document")
        try:
            self._order = BatchOrder(
                self.cache,
                batch_size,
                sequence_length,
                seed,
                rank=rank,
                world_size=world_size,
                shuffle=shuffle,
                packing=packing,
                split=split,
                validation_fraction=validation_fraction,
                plans=mixture_plans(self.cache.sources, weights, earlier_weights, batch_size * sequence_length),
            )
            self._states = StateKeeper(self.cache, self._order)
            self._queue = self._start(options, transform, skip)
        except BaseException:
            if self._builder is not None:
                self._builder.close()
            raise
        self._counters = Counters()
        self._step = 0
        self._first_asked_s: float | None = None
        self._has_raised_failure = False
        self._take_lock = threading.RLock()
        self._process = os.getpid()
        # Ends the threads even if nobody closes the loader. It must not refer to the loader, which would then never be
        # collected.
        self._finalizer = weakref.finalize(self, _close, self._queue, self._builder, self._process)

    def _start(self, options: LoaderOptions, transform: Transform | None, skip: Sequence[str]) -> Inline | Prefetcher:
        """Start tokenising, if that is needed, and return the queue whose workers make the batches."""
        make = make_batches(self.cache, self._order.assembler, transform, self.seed, self.rank)
        limit = queue_limit(self.batch_size // self.world_size, self.row_bytes, options)
        if self._builder is not None:
            self._builder.set_order(self._order.segments)
            self._builder.start()
        self._skip: tuple[str, ...] = ()
        self._set_skip(skip)  # after the builder's start: names are looked up in tokenised text
        return make_queue(make, options.num_workers, options.depth, limit)

    # Iterating

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch; several threads may ask: each batch goes to one of them."""
        self._refuse_fork()
        with self._take_lock:
            asked_s = time.perf_counter()
            if self._first_asked_s is None:
                self._first_asked_s = asked_s
            batch = self._queue.take(self._step)
            self._step += 1
            waited_s = time.perf_counter() - asked_s
            counters = self._counters
            counters.batches += 1
            counters.tokens += batch.num_tokens
            counters.wait_s += waited_s
            counters.last_wait_s = waited_s
            return batch

    def epoch(self) -> Iterator[Batch]:
        """Yield the batches up to the end of this pass over the corpus: `steps_per_epoch` of them from its beginning.

        >>> for batch in loader.epoch():                                             # doctest: +SKIP
        ...     train_on(batch.inputs, batch.targets)

        After `restore` or `seek` into the middle of a pass, it yields the rest of that pass. The next call yields the
        next pass, in another order.
        """
        # The last rows of a pass need all of its text, so counting can wait until that is tokenised; only a mixture may
        # end its pass before.
        begin = self._step
        is_known = self.cache.is_complete or len(self._order.streams) > 1
        end = self._order.end_of_pass(begin) if is_known else None
        while end is None or self._step < end:
            batch = next(self)
            if end is None and self.cache.is_complete:
                end = self._order.end_of_pass(begin)
            yield batch

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call_while_waiting(self, act: Callable[[], None]) -> None:
        """Call `act` a few times a second while waiting for a batch. If it raises, the same batch comes next."""
        self._queue.while_waiting = act

    def close(self) -> None:
        """Stop all threads, wherever they are. Safe to call at any time, and more than once.

        Raises the builder's error if all batches could be served but the cache could not be sealed (a full disk).
        """
        self._finalizer()
        failure = self._builder.failure if self._builder is not None else None
        if failure is not None and self.cache.is_complete and not self._has_raised_failure:
            self._has_raised_failure = True
            raise failure

    # State

    @property
    def step(self) -> int:
        """The step of the next batch."""
        return self._step

    def state(self, step: int | None = None) -> dict[str, Any]:
        """Return the state at the next step, or at `step`: a few integers and hashes, under 1 KiB, ready for JSON."""
        return self._states.state(self._step if step is None else step, self._skip)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state()` was taken; the number of ranks and workers may have changed since."""
        self._states.check(state)
        if list(state.get("skip", [])) != list(self._skip):
            self._set_skip(state["skip"])
        self.seek(int(state["step"]))

    def seek(self, step: int) -> None:
        """Continue with the batch of this step."""
        if step < 0:
            raise UsageError(f"step {step}: steps count from 0")
        self._refuse_fork()
        with self._take_lock:
            self._step = step
            self._queue.seek(step)

    # Explaining

    def counters(self) -> Counters:
        """Return what has been served, waited for and held so far."""
        counters = self._counters
        if self._first_asked_s is not None:
            counters.elapsed_s = time.perf_counter() - self._first_asked_s
            counters.wait_percent = 100 * counters.wait_s / max(counters.elapsed_s, 1e-9)
        counters.queue_depth, counters.queue_limit, counters.bytes_held = self._queue.holding()
        counters.worker_cpu_s = self._queue.cpu_seconds() + (self._builder.cpu_seconds if self._builder else 0.0)
        return Counters(**asdict(counters))

    def explain(self, step: int, rows: Sequence[int] | None = None) -> list[RowTrace]:
        """Return which source, file, document and tokens the rows of a batch came from, with their text."""
        wanted = range(self.batch_size) if rows is None else rows
        tracer = Tracer(self.cache)
        return [tracer.row(row, self._order.assembler.trace(step * self.batch_size + row)) for row in wanted]

    def ledger(self) -> list[Ledger]:
        """Return, for each stream, what becomes of every token of the corpus in one pass. The sums are exact."""
        return list(map(pass_ledger, self._order.streams, self._order.names))

    @property
    def is_mixture(self) -> bool:
        """Whether sources have weights; if not, all text is one corpus."""
        return self._order.mixture is not None

    def rows_by_source(self, step: int | None = None) -> dict[str, int]:
        """Return how many rows of each source the batches before the next step have had, or before `step`."""
        return dict(zip(self._order.names, self._order.rows_before(self._step if step is None else step), strict=True))

    def sample(self, max_tokens: int = 0) -> list[Sample]:
        """Draw rows to evaluate on, by source: about `max_tokens` tokens (0: all), every row at most once.

        They come from all over this part of the corpus, and are the same whatever the seed of the loader.
        """
        return self._order.sampler.draw(max_tokens)

    @property
    def num_rows(self) -> int | None:
        """Rows in one pass over this part of the corpus, over all sources; None while it is being tokenised."""
        if not self.cache.is_complete:
            return None
        return sum(stream.packing.num_rows(stream.epoch_size()) for stream in self._order.streams)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the corpus; in a mixture, until one of its sources has been read once."""
        return self._order.steps_per_epoch

    def _set_skip(self, names: Sequence[str]) -> None:
        names = tuple(dict.fromkeys(names))
        self._order.set_skipped(names)
        self._skip = names

    def _refuse_fork(self) -> None:
        """Refuse to work in a forked process: the threads are not copied, and copied locks may be held for ever."""
        if os.getpid() == self._process:
            return
        if self._queue.is_lost or (self._builder is not None and not self.cache.is_complete):
            raise UsageError(
                f"this loader's threads belong to process {self._process} and were not copied when it was forked."
                " Make a loader in each process, or fork before the first batch of a loader over a finished cache."
            )
        self._process = os.getpid()  # nothing had been started yet


def _close(queue: Inline | Prefetcher, builder: Builder | None, process: int) -> None:
    queue.stop()
    if builder is not None and os.getpid() == process:
        builder.close()  # wakes workers that wait for tokens
    queue.join()
