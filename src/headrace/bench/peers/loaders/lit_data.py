"""litdata: `optimize` with `TokensLoader`, then `StreamingDataset` and `StreamingDataLoader`, as in its LLM guide."""

from collections.abc import Iterator

import numpy as np
import torch
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize

from headrace.bench.peer import Corpus

PIECE_TOKENS = 1 << 16


def read(piece: tuple[str, int]) -> Iterator[torch.Tensor]:
    path, start = piece
    yield torch.from_numpy(np.array(np.memmap(path, np.uint16, "r")[start : start + PIECE_TOKENS]))


def prepare(corpus: Corpus, sequence_length: int) -> None:
    count = len(np.memmap(corpus.tokens, np.uint16, "r"))
    optimize(
        fn=read,
        inputs=[(corpus.tokens, start) for start in range(0, count, PIECE_TOKENS)],
        output_dir=f"{corpus.folder}/litdata",
        chunk_size=(sequence_length + 1) * 8012,
        item_loader=TokensLoader(block_size=sequence_length + 1),
        num_workers=2,
    )


def batches(corpus: Corpus, batch_size: int, sequence_length: int, num_workers: int) -> Iterator[object]:
    rows = TokensLoader(block_size=sequence_length + 1)
    dataset = StreamingDataset(f"{corpus.folder}/litdata", item_loader=rows, shuffle=True, drop_last=True, seed=0)
    loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=num_workers)
    while True:
        yield from loader
