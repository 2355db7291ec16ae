"""Grain: the token cache as a random-access source, and a Grain pipeline as batches for headrace's trainer.

    source = GrainSource(hr.Cache.open("cache"), sequence_length=256)
    dataset = grain.MapDataset.source(source).shuffle(seed=0).repeat().batch(32).to_iter_dataset()
    hr.train({...}, batches=GrainBatches(dataset))

Grain itself is not needed to open the source, only to use it (`pip install 'headrace[grain]'`).
"""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from headrace.data.batch import Batch
from headrace.data.cache.cache import Cache
from headrace.errors import StateError, UsageError


class GrainSource:
    """Windows of T+1 tokens over the corpus in its own order; row k is row k of `Loader(…, shuffle=False)`.

    It pickles as the path of its cache, so worker processes map the same files.
    """

    def __init__(self, cache: Cache, sequence_length: int) -> None:
        if sequence_length < 1:
            raise UsageError(f"sequence_length must be at least 1, not {sequence_length}")
        self._cache = cache
        self._sequence_length = sequence_length
        sizes = [cache.entry(segment).num_tokens for segment in range(len(cache.segments))]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])

    def __len__(self) -> int:
        return max(int(self._starts[-1]) - 1, 0) // self._sequence_length

    def __getitem__(self, row: SupportsIndex) -> dict[str, npt.NDArray[Any]]:
        """Return `inputs` and `targets`, T tokens each."""
        number = operator.index(row)
        if not 0 <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        start = number * self._sequence_length
        tokens = self._tokens(start, start + self._sequence_length + 1)
        return {"inputs": tokens[:-1], "targets": tokens[1:]}

    def __repr__(self) -> str:
        return f"GrainSource({str(self._cache.path)!r}, sequence_length={self._sequence_length})"

    def _tokens(self, start: int, stop: int) -> npt.NDArray[Any]:
        parts: list[npt.NDArray[Any]] = []
        segment = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first, end = int(self._starts[segment]), min(int(self._starts[segment + 1]), stop)
            parts += self._cache.tokens(segment, start - first, end - first)
            start, segment = end, segment + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class GrainBatches:
    """Batches for the trainer from a Grain `IterDataset` or `DataLoader` whose elements have `inputs` and `targets`.

    State is Grain's own, so resuming is as exact as that pipeline makes it.
    """

    def __init__(self, dataset: Any) -> None:
        self._iterator = iter(dataset)
        self._step = 0

    def __next__(self) -> Batch:
        try:
            element = next(self._iterator)
        except StopIteration:
            raise UsageError(
                f"the Grain pipeline ended after {self._step} batches; training needs an endless one: add .repeat()"
            ) from None
        try:
            inputs, targets = np.asarray(element["inputs"]), np.asarray(element["targets"])
        except (KeyError, TypeError, IndexError):
            raise UsageError(
                "elements of the Grain pipeline must be dicts with 'inputs' and 'targets', such as GrainSource gives"
            ) from None
        if inputs.ndim != 2 or inputs.shape != targets.shape:
            raise UsageError(
                f"'inputs' {inputs.shape} and 'targets' {targets.shape} of the Grain pipeline must be (rows, T): add"
                " .batch(N, drop_remainder=True)"
            )
        batch = Batch(self._step, inputs, targets, element.get("documents"), element.get("mask"))
        self._step += 1
        return batch

    def state(self) -> dict[str, Any]:
        """Return Grain's state and the step, ready for JSON."""
        state = self._iterator.get_state()
        return {"step": self._step, "grain": state.decode() if isinstance(state, bytes) else state}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where a state was taken."""
        if "grain" not in state:
            raise StateError("this state does not belong to a Grain pipeline: the run was started with other batches.")
        saved = state["grain"]
        self._iterator.set_state(saved.encode() if isinstance(saved, str) else saved)
        self._step = int(state["step"])
