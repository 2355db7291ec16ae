"""The exact order of a loader's batches: which rows of which streams make up each of them, and what it depends on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.data.arguments import source_weights
from headrace.data.batch import Assembler
from headrace.data.cache.cache import Cache
from headrace.data.corpus.scale import current_scale
from headrace.data.explain.trace import Tracer
from headrace.data.order.mixture import Mixture
from headrace.data.order.packing import DocumentPacking, PackingName
from headrace.data.order.split import Part, Split
from headrace.data.order.stream import Stream
from headrace.data.order.windows import WindowPacking
from headrace.data.sample import Sampler, segments_by_source
from headrace.files import digest


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
        weights: Sequence[float] | None,
    ) -> None:
        self._cache = cache
        self._batch_size = batch_size
        weights = source_weights(cache, weights)
        make_packing = WindowPacking if packing == "stream" else DocumentPacking
        part = Split(cache, split, validation_fraction)
        self.sampler = Sampler(cache, part, make_packing, sequence_length, weights)
        groups = segments_by_source(cache) if weights else [np.arange(len(cache.segments))]
        first_block_bytes = current_scale().first_block_bytes // len(groups)
        self.streams = [
            Stream(cache, group, part, make_packing(sequence_length), seed, shuffle, first_block_bytes)
            for group in groups
        ]
        mixture = Mixture(weights, seed) if weights else None
        self.assembler = Assembler(self.streams, mixture, batch_size, sequence_length, rank, world_size)
        self.segments = self._segments_as_needed()
        """All segments in the order in which the first pass will need them."""
        self.identity = {
            "corpus": cache.corpus_hash,
            "tokenizer": cache.tokenizer.hash[:16],
            "sequence_length": sequence_length,
            "batch_size": batch_size,
            "seed": seed,
            "shuffle": shuffle,
            "packing": packing,
            "split": f"{split} {validation_fraction:g}",
            "mixture": digest(repr(weights))[:8] if weights else "",
        }
        """All that the order depends on: two orders with the same identity are the same."""

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the corpus; in a mixture, until one of its sources has been read once."""
        rows = [stream.packing.num_rows(stream.epoch_size()) for stream in self.streams]
        if self.assembler.mixture is None:
            return rows[0] // self._batch_size
        shares = self.assembler.mixture.shares
        return int(min(count / share for count, share in zip(rows, shares, strict=True))) // self._batch_size

    def set_skipped(self, names: Sequence[str]) -> None:
        """Leave out the documents with these names from now on; the order of everything else stays as it is."""
        skipped: dict[int, list[tuple[int, int]]] = {}
        tracer = Tracer(self._cache)
        for name in names:
            segment, start, stop = tracer.find(name)
            skipped.setdefault(segment, []).append((start, stop))
        for stream in self.streams:
            stream.set_skipped(skipped)

    def _segments_as_needed(self) -> list[int]:
        """Let the streams of a mixture take turns, block by block; what no pass needs comes last."""
        orders = [list(stream.build_order()) for stream in self.streams]
        order: list[int] = []
        for turn in range(max(map(len, orders))):
            for blocks in orders:
                if turn < len(blocks):
                    order += blocks[turn].tolist()
        return order + sorted(set(range(len(self._cache.segments))) - set(order))
