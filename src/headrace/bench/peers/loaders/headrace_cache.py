"""headrace from its cache."""

from collections.abc import Iterator

import headrace as hr
from headrace.bench.peer import Corpus


def batches(corpus: Corpus, batch_size: int, sequence_length: int, num_workers: int) -> Iterator[object]:
    with hr.Loader(corpus.cache, batch_size, sequence_length, num_workers=num_workers) as loader:
        for batch in loader:
            yield batch.inputs, batch.targets
