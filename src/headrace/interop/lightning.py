"""Lightning: a data module that prepares the text once, gives each process its share, and resumes exactly.

    data = data_module("corpus/", batch_size=32, sequence_length=256, tokenizer="bpe:16000", cache_dir="cache")
    Trainer(max_steps=1000, devices=2).fit(model, data, ckpt_path="last")

Needs Lightning (`pip install 'headrace[lightning]'`). A whole training script is in examples/train_lightning.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from headrace.data.batch import Batch
from headrace.data.cache.cache import Cache
from headrace.data.corpus.sources import as_sources
from headrace.data.loader import Loader
from headrace.data.prepare import prepare
from headrace.data.tokens.tokenizers import DEFAULT_TOKENIZER, Tokenizer
from headrace.errors import UsageError
from headrace.interop.extras import require
from headrace.interop.torch import TorchBatches, as_tensors

VALIDATION_TOKENS = 65_536


class KeptBatches:
    """A few batches that are the same each time. (Lightning takes a list for one dataloader per element.)"""

    def __init__(self, batches: list[dict[str, Tensor]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


OPTIONS_OF_TEXT = ("special_tokens_in_text", "deduplicate", "near_threshold", "keep", "keep_name", "memory_budget")
"""Arguments of `Loader` that decide how text becomes tokens."""


def data_module(
    cache_or_sources: Any,
    batch_size: int,
    sequence_length: int,
    seed: int = 0,
    *,
    tokenizer: str | Tokenizer = DEFAULT_TOKENIZER,
    cache_dir: str | Path | None = None,
    validation_fraction: float = 0.0,
    validation_tokens: int = VALIDATION_TOKENS,
    num_steps: int | None = None,
    **options: Any,
) -> Any:
    """Return a `LightningDataModule` over a cache, or over text that is tokenised once, on one process per machine.

    Batches are the dicts of `TorchBatches`. `batch_size` is of the whole batch: with N processes each gets one Nth of
    its rows, and together they train on the very batches of one process. An epoch of Lightning is `num_steps` batches,
    by default one pass over the corpus. With a `validation_fraction` there are validation batches too: the same
    `validation_tokens` tokens (0: all) each time. `options` are further arguments of `Loader`.
    """
    lightning = require("lightning", "lightning")

    class DataModule(lightning.LightningDataModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cache: Cache | None = None
            self._loader: Loader | None = None
            self._batches: TorchBatches | None = None
            self._state: dict[str, Any] | None = None

        def prepare_data(self) -> None:
            _finished_cache(cache_or_sources, tokenizer, cache_dir, options)

        def setup(self, stage: str | None = None) -> None:
            # At once: it is prepared by now.
            self.cache = _finished_cache(cache_or_sources, tokenizer, cache_dir, options)

        def train_dataloader(self) -> TorchBatches:
            # Lightning may ask again, for each epoch or another `fit`: the batches go on where they were.
            if self._batches is None:
                self._loader = self._make_loader("train" if validation_fraction else "all")
                self._batches = TorchBatches(self._loader, num_steps or _steps_per_epoch(self._loader))
                if self._state is not None:
                    self._batches.load_state_dict(self._state)
            return self._batches

        def val_dataloader(self) -> Any:
            if not validation_fraction:
                return []
            with self._make_loader("validation") as loader:
                samples = [sample.batch for sample in loader.sample(validation_tokens)]
                parts = [part for batch in samples if batch is not None for part in _share(batch, loader)]
            return KeptBatches([as_tensors(part) for part in parts])

        def teardown(self, stage: str | None = None) -> None:
            if self._batches is not None and self._loader is not None:
                self._state = self._batches.state_dict()
                self._loader.close()
                self._batches = self._loader = None

        def _make_loader(self, split: Any) -> Loader:
            if self.cache is None:
                self.setup()
            # Not the trainer's rank and world size: with tensor parallelism several processes share their rows.
            place = (self.trainer.distributed_sampler_kwargs if self.trainer is not None else None) or {}
            return Loader(
                self.cache,
                batch_size,
                sequence_length,
                seed,
                rank=place.get("rank", 0),
                world_size=place.get("num_replicas", 1),
                split=split,
                validation_fraction=validation_fraction,
                **options,
            )

    return DataModule()


def _finished_cache(
    given: Any, tokenizer: str | Tokenizer, cache_dir: str | Path | None, options: dict[str, Any]
) -> Cache:
    """Return the given cache, or that of the given text, which is tokenised now if it has none yet."""
    if isinstance(given, Cache):
        return given
    if isinstance(given, (str, os.PathLike)) and Cache.is_cache(Path(given).expanduser()):
        return Cache.open(Path(given).expanduser())
    if options.get("weights") is not None:
        given = as_sources(given, apart=True)  # one source per path: each has a weight
    of_text = {name: options[name] for name in OPTIONS_OF_TEXT if name in options}
    return prepare(given, tokenizer, cache_dir, **of_text)


def _steps_per_epoch(loader: Loader) -> int:
    if not loader.steps_per_epoch:
        raise UsageError(
            f"one pass over this corpus has fewer than {loader.batch_size} rows of {loader.sequence_length} tokens, so"
            " it is no whole batch. Use a smaller batch_size or sequence_length, more text, or give num_steps."
        )
    return loader.steps_per_epoch


def _share(batch: Batch, loader: Loader) -> Iterator[Batch]:
    """Divide the rows of a sample among the processes, and those of this process into batches.

    Each process gets equally many, or those that have more would wait for the others: up to world_size - 1 rows are
    left out.
    """
    num_rows = len(batch.inputs) // loader.world_size
    own = batch.rows(slice(loader.rank * num_rows, (loader.rank + 1) * num_rows))
    size = loader.batch_size // loader.world_size
    for start in range(0, num_rows, size):
        yield own.rows(slice(start, start + size))
