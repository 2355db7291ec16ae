"""The exact order of a loader's batches: which rows of which streams make up each of them, and what it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.data.batch import Assembler
from headrace.data.cache.cache import Cache
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.segments import corpus_hash
from headrace.data.corpus.sources import unique_names
from headrace.data.explain.trace import Tracer
from headrace.data.order.packing import DocumentPacking, PackingName
from headrace.data.order.plans import Plan, make_mixture, mark_of, older_mark_of, plans_before
from headrace.data.order.split import Part, Split
from headrace.data.order.stream import Stream
from headrace.data.order.windows import WindowPacking
from headrace.data.sample import Sampler, segments_by_source
from headrace.errors import UsageError


class BatchOrder:
    """A pure function from a step to the rows of its batch, given a corpus, a seed and a few sizes.

    Nothing is read when it is made: the corpus may still have to be tokenised.
    """

    def __init__(
        self,
        cache: Cache,
        batch_size: int,
        sequence_length: int,
        seed: int,
        *,
        rank: int,
        world_size: int,
        shuffle: bool,
        packing: PackingName,
        split: Part,
        validation_fraction: float,
        plans: Sequence[Plan],
    ) -> None:
        """`plans`: the mixtures of the sources, each from a step on; none if all text is one corpus."""
        self._cache = cache
        self._batch_size = batch_size
        self._plans = plans
        make_packing = WindowPacking if packing == "stream" else DocumentPacking
        part = Split(cache, split, validation_fraction)
        groups = segments_by_source(cache) if plans else [np.arange(len(cache.segments))]
        # Sources that are added to a run later must not move the blocks of those that it began with.
        first_block_bytes = current_scale().first_block_bytes // (len(plans[0].weights) if plans else 1)
        self.streams = [
            Stream(cache, group, part, make_packing(sequence_length), seed, shuffle, first_block_bytes)
            for group in groups
        ]
        self.names = unique_names(cache.sources) if plans else [""]
        """The sources of the streams; empty for a whole corpus."""
        self.mixture = make_mixture(plans, batch_size, seed) if plans else None
        """Which source each row is from; None: there is one stream."""
        self.sampler = Sampler(cache, part, make_packing, sequence_length, *self._sample_weights())
        self.assembler = Assembler(self.streams, self.mixture, batch_size, sequence_length, rank, world_size)
        self.segments = self._segments_as_needed(len(self.streams))
        """All segments in the order in which the first pass will need them."""
        self._identity = {
            "tokenizer": cache.tokenizer.hash[:16],
            "sequence_length": sequence_length,
            "batch_size": batch_size,
            "seed": seed,
            "shuffle": shuffle,
            "packing": packing,
            "split": f"{split} {validation_fraction:g}",
        }

        self._identities: dict[int, dict[str, Any]] = {}

    def identity(self, step: int) -> dict[str, Any]:
        """Return all that the batches before a step depend on: two orders with the same identity agree on them.

        What the mixture will be from that step on, and sources that are added then, are no part of it.
        """
        plans = plans_before(self._plans, step)
        if len(plans) not in self._identities:
            count = self._num_sources(step)
            known = [segment for segment in self._cache.segments if not plans or segment.source < count]
            mixture = mark_of(plans, self._batch_size) if plans else ""
            self._identities[len(plans)] = {"corpus": corpus_hash(known), **self._identity, "mixture": mixture}
        return self._identities[len(plans)]

    def older_mark(self, step: int) -> str:
        """Return another mark of the mixture that stands in states of earlier versions; empty if there is none."""
        plans = plans_before(self._plans, step)
        return older_mark_of(plans) if plans else ""

    def segments_before(self, step: int) -> list[int]:
        """Return the segments that batches before a step may need, in the order in which the first pass needs them."""
        count = self._num_sources(step)
        return self.segments if count == len(self._cache.sources) else self._segments_as_needed(count)

    def rows_before(self, step: int) -> list[int]:
        """Return how many rows of each stream the batches before a step have."""
        row = step * self._batch_size
        return [row] if self.mixture is None else self.mixture.rows_before(row).tolist()

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the corpus; in a mixture, until one of its sources has been read once."""
        rows = [stream.packing.num_rows(stream.epoch_size()) for stream in self.streams]
        if self.mixture is None:
            return rows[0] // self._batch_size
        if len(self.mixture.phases) == 1:
            shares = map(float, self.mixture.phases[0].shares)
            return int(min(n / share for n, share in zip(rows, shares, strict=True) if share)) // self._batch_size
        low, high = 0, sum(rows) // self._batch_size  # by then, some source has been read once
        while low < high:
            step = (low + high + 1) // 2
            is_within = (self.mixture.rows_before(step * self._batch_size) <= np.array(rows)).all()
            low, high = (step, high) if is_within else (low, step - 1)
        return low

    def end_of_pass(self, step: int) -> int:
        """Return the step at which the pass that a step belongs to is over."""
        length = self.steps_per_epoch
        if not length:
            raise UsageError(
                f"one pass over this corpus has fewer than {self._batch_size} rows of"
                f" {self._identity['sequence_length']} tokens, so no batch of it is whole. Use a smaller batch_size or"
                " sequence_length, or more text."
            )
        return (step // length + 1) * length

    def set_skipped(self, names: Sequence[str]) -> None:
        """Leave out the documents with these names from now on; the order of everything else stays as it is."""
        skipped: dict[int, list[tuple[int, int]]] = {}
        tracer = Tracer(self._cache)
        for name in names:
            segment, start, stop = tracer.find(name)
            skipped.setdefault(segment, []).append((start, stop))
        for stream in self.streams:
            stream.set_skipped(skipped)

    def _num_sources(self, step: int) -> int:
        """Return how many sources the batches before a step may be from; sources that were added later come last."""
        return max((len(plan.weights) for plan in plans_before(self._plans, step)), default=len(self._cache.sources))

    def _sample_weights(self) -> tuple[list[float] | None, list[float] | None]:
        """Return the weights by which losses on the sources are averaged, and those by which rows are drawn.

        Losses count as the mixture ends, so that all evaluations of a run are compared by what it aims at.
        """
        if self.mixture is None:
            return None, None
        if len(self.mixture.phases) == 1:
            weights = self._plans[0].weights_at_start()
            return weights, weights
        return [float(share) for share in self.mixture.phases[-1].final_shares], self.mixture.mean_shares()

    def _segments_as_needed(self, count: int) -> list[int]:
        """Let the first streams of a mixture take turns, block by block; what no pass needs comes last."""
        orders = [list(stream.build_order()) for stream in self.streams[:count]]
        order: list[int] = []
        for turn in range(max(map(len, orders))):
            for blocks in orders:
                if turn < len(blocks):
                    order += blocks[turn].tolist()
        all_there_are = {segment for stream in self.streams[:count] for segment in stream.segments.tolist()}
        return order + sorted(all_there_are - set(order))
