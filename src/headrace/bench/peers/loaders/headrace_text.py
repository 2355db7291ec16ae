"""headrace from raw text: tokenised while it is served, with no cache to begin with."""

import tempfile
from collections.abc import Iterator

import headrace as hr
from headrace.bench.peer import Corpus


def batches(corpus: Corpus, batch_size: int, sequence_length: int, num_workers: int) -> Iterator[object]:
    with (
        tempfile.TemporaryDirectory(dir=corpus.folder) as folder,
        hr.Loader(
            corpus.text,
            batch_size,
            sequence_length,
            num_workers=num_workers,
            tokenizer=f"{corpus.cache}/tokenizer.json",
            cache_dir=f"{folder}/cache",
        ) as loader,
    ):
        for batch in loader:
            yield batch.inputs, batch.targets
