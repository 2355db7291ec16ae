"""Hugging Face datasets: Arrow on disk, `with_format("torch")` and a DataLoader, as "Use with PyTorch" has it."""

from collections.abc import Iterator

import numpy as np
import torch
from datasets import Dataset, load_from_disk
from torch.utils.data import DataLoader

from headrace.bench.peer import Corpus
from headrace.bench.peers.loaders.windows import all_windows


def prepare(corpus: Corpus, sequence_length: int) -> None:
    rows = np.ascontiguousarray(all_windows(corpus.tokens, sequence_length))
    Dataset.from_dict({"tokens": list(rows)}).save_to_disk(f"{corpus.folder}/arrow")


def batches(corpus: Corpus, batch_size: int, sequence_length: int, num_workers: int) -> Iterator[object]:
    torch.manual_seed(0)
    dataset = load_from_disk(f"{corpus.folder}/arrow").with_format("torch")
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    while True:
        for batch in loader:
            yield batch["tokens"]
