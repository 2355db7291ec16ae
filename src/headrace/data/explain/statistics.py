"""What a corpus looks like in tokens, and what cutting it into sequences does to its documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.data.cache.cache import Cache
from headrace.data.order.packing import PackingName, pack_documents
from headrace.data.order.split import document_bounds


@dataclass(frozen=True)
class Statistics:
    """Chunking statistics of a corpus at one sequence length."""

    documents: int
    tokens: int
    sequences_before: int
    """Sequences before chunking: one per document."""
    sequences_after: int
    documents_split: int
    """Documents that do not lie within one sequence."""
    shortest: int
    mean: float
    longest: int
    """Document lengths in tokens, end-of-text included."""
    padding: int
    """Places without a token."""
    fill_percent: float


def chunking_statistics(cache: Cache, sequence_length: int, packing: PackingName) -> Statistics:
    """Compute the statistics one segment at a time, so that memory does not grow with the corpus."""
    documents = split = rows = slots_filled = 0
    shortest, longest = 0, 0
    position = open_start = 0  # where the current document began, counted in tokens from the start of the corpus
    for segment in range(len(cache.segments)):
        ends = cache.document_ends(segment)
        total = cache.entry(segment).num_tokens
        stops = ends + position
        starts = np.concatenate([[open_start], stops[:-1]]) if len(stops) else stops
        lengths = stops - starts
        if len(lengths):
            shortest = min(shortest, int(lengths.min())) if documents else int(lengths.min())
            longest = max(longest, int(lengths.max()))
            if packing == "stream":
                split += int((starts // sequence_length != (stops - 1) // sequence_length).sum())
            else:
                split += int((lengths - 1 > sequence_length).sum())
            documents += len(lengths)
            open_start = int(stops[-1])
        if packing == "document":
            bounds = document_bounds(cache, segment)
            packed = pack_documents(bounds[:-1], bounds[1:], sequence_length)
            rows += packed.num_rows
            slots_filled += int(packed.lengths.sum())
        position += total
    if packing == "stream":
        rows = max(position - 1, 0) // sequence_length
        slots_filled = rows * sequence_length
    slots = rows * sequence_length
    mean = position / max(documents, 1)
    fill = 100 * slots_filled / max(slots, 1)
    return Statistics(documents, position, documents, rows, split, shortest, mean, longest, slots - slots_filled, fill)
