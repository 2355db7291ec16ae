"""Grain with worker processes: the same pipeline and `mp_prefetch`."""

from collections.abc import Iterator

import grain
from absl import flags

from headrace.bench.peer import Corpus
from headrace.bench.peers.loaders.grain_threads import dataset


def batches(corpus: Corpus, batch_size: int, sequence_length: int, num_workers: int) -> Iterator[object]:
    flags.FLAGS.mark_as_parsed()  # what absl.app.run does
    options = grain.MultiprocessingOptions(num_workers=num_workers)
    return iter(dataset(corpus, batch_size, sequence_length).mp_prefetch(options))
