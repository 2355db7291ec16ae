"""Grain with its reading threads: `MapDataset` → shuffle → repeat → batch → `to_iter_dataset` with its defaults."""

from collections.abc import Iterator

import grain

from headrace.bench.peer import Corpus
from headrace.bench.peers.loaders.windows import Windows


def dataset(corpus: Corpus, batch_size: int, sequence_length: int) -> grain.IterDataset:
    rows = grain.MapDataset.source(Windows(corpus.tokens, sequence_length)).shuffle(seed=0).repeat()
    return rows.batch(batch_size, drop_remainder=True).to_iter_dataset()


def batches(corpus: Corpus, batch_size: int, sequence_length: int, num_workers: int) -> Iterator[object]:
    return iter(dataset(corpus, batch_size, sequence_length))
