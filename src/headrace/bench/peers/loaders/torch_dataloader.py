"""torch's DataLoader as its tutorial "Datasets & DataLoaders" has it: a map-style dataset and the default collation.

One row at a time through `__getitem__`, nothing vectorised by us: the optional `Dataset.__getitems__` is in the
reference but in no tutorial. Rows stay uint16, as for every peer here; the int64 of an embedding would cost it more.
"""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader

from headrace.bench.peer import Corpus
from headrace.bench.peers.loaders.windows import Windows


def batches(corpus: Corpus, batch_size: int, sequence_length: int, num_workers: int) -> Iterator[object]:
    torch.manual_seed(0)
    loader: DataLoader[object] = DataLoader(
        Windows(corpus.tokens, sequence_length),  # type: ignore[arg-type]
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    while True:
        yield from loader
