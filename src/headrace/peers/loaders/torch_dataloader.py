"""torch's DataLoader over a map-style dataset, as its tutorial writes it."""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader

from headrace.peers.loaders.windows import Windows
from headrace.recipes.bench import Corpus


def batches(corpus: Corpus, batch_size: int, length: int, num_workers: int) -> Iterator[object]:
    torch.manual_seed(0)
    loader: DataLoader[object] = DataLoader(
        Windows(corpus.tokens, length),  # type: ignore[arg-type]
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    while True:
        yield from loader
