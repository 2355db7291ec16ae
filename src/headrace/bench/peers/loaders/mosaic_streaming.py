"""MosaicML streaming: MDS shards, `StreamingDataset` with shuffling, and a DataLoader."""

from collections.abc import Iterator

import numpy as np
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from headrace.bench.peer import Corpus
from headrace.bench.peers.loaders.windows import all_windows


def prepare(corpus: Corpus, sequence_length: int) -> None:
    with MDSWriter(out=f"{corpus.folder}/mds", columns={"tokens": f"ndarray:uint16:{sequence_length + 1}"}) as writer:
        for row in all_windows(corpus.tokens, sequence_length):
            writer.write({"tokens": np.ascontiguousarray(row)})


def batches(corpus: Corpus, batch_size: int, sequence_length: int, num_workers: int) -> Iterator[object]:
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=f"{corpus.folder}/mds", shuffle=True, batch_size=batch_size)
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=num_workers, drop_last=True)
    while True:
        for batch in loader:
            yield batch["tokens"]
