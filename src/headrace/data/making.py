"""What a loader's workers run: batches are gathered, checked and transformed."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import numpy as np

from headrace.data.batch import Assembler, Batch
from headrace.data.cache.cache import Cache
from headrace.data.prefetch import Make
from headrace.errors import WorkerError

Transform = Callable[[Batch, np.random.Generator], Batch]


def make_batches(cache: Cache, assembler: Assembler, transform: Transform | None, seed: int, rank: int) -> Make:
    """Return the function that workers call. It must not refer to the loader, or a forgotten loader would never end."""

    def make(step: int, count: int) -> list[Batch]:
        cache.check_unchanged()
        batches = assembler.batches(step, count)
        cache.check_unchanged()  # the files must not have changed while they were read either
        if transform is None:
            return batches
        # A generator per step: what a transform draws does not depend on which worker runs it.
        return [_transformed(transform, batch, [seed % 2**64, batch.step, rank]) for batch in batches]

    return make


def _transformed(transform: Transform, batch: Batch, seed: list[int]) -> Batch:
    try:
        return transform(batch, np.random.default_rng(seed))
    except StopIteration as problem:  # a loop over the loader would take it for the end of the loader
        place = traceback.extract_tb(problem.__traceback__)[-1]
        raise WorkerError(
            f"the transform raised StopIteration at step {batch.step} ({place.filename}:{place.lineno}): an iterator"
            " that it takes from has ended. Start it again in the transform, or give next() a default."
        ) from problem
