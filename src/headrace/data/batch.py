"""A batch, and how it is put together from the streams of a mixture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data.order.mixture import Mixture
from headrace.data.order.rows import Extent, RowBatch, Rows
from headrace.data.order.stream import Stream


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's rows of a global batch. Arrays are (rows, T) in the corpus's own token type (uint16 or uint32)."""

    step: int
    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    documents: npt.NDArray[np.int32] | None = None
    """With document packing: which document of its row each input belongs to, from 1; 0 is padding."""
    mask: npt.NDArray[np.bool_] | None = None
    """Which targets count; None means all."""

    @property
    def num_tokens(self) -> int:
        """Targets that count."""
        return int(self.targets.size if self.mask is None else self.mask.sum())

    @property
    def nbytes(self) -> int:
        rows, length = self.inputs.shape
        return int(rows) * row_bytes(int(length), self.inputs.dtype, self.documents is not None)

    def rows(self, rows: slice) -> Batch:
        """Return a batch that has only these rows."""
        return self.map(lambda array: array[rows])

    def map(self, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Batch:
        """Return a batch of which each array is changed in the same way."""
        documents = None if self.documents is None else change(self.documents)
        mask = None if self.mask is None else change(self.mask)
        return Batch(self.step, change(self.inputs), change(self.targets), documents, mask)


def as_batch(step: int, rows: RowBatch, length: int) -> Batch:
    """Return rows of tokens as a batch, divided into inputs and targets."""
    return Batch(step, rows.tokens[:, :length], rows.tokens[:, -length:], rows.documents, rows.mask)


def row_bytes(length: int, dtype: np.dtype[Any], is_packed: bool) -> int:
    """Return the bytes of a row: a window of T + 1 tokens, or packed documents with their numbers and mask."""
    return length * (2 * dtype.itemsize + 5) if is_packed else (length + 1) * dtype.itemsize


class Assembler:
    """The rows of a mixture by number, and batches of them by step: a pure function of its arguments."""

    def __init__(
        self,
        streams: Sequence[Stream],
        mixture: Mixture | None,
        batch_size: int,
        sequence_length: int,
        rank: int,
        world_size: int,
    ) -> None:
        self.streams = streams
        self.mixture = mixture
        self._batch_size = batch_size
        self._length = sequence_length
        self._rows_per_rank = batch_size // world_size
        self._first = rank * self._rows_per_rank

    def batches(self, step: int, count: int) -> list[Batch]:
        """Return the batches of consecutive steps, made together: one large gather costs less than many small ones."""
        steps = np.arange(step, step + count)[:, None] * self._batch_size
        rows = (steps + self._first + np.arange(self._rows_per_rank)[None, :]).reshape(-1)
        gathered = self._gather(rows)
        size = self._rows_per_rank
        parts = (slice(number * size, (number + 1) * size) for number in range(count))
        return [as_batch(step + number, gathered, self._length).rows(part) for number, part in enumerate(parts)]

    def trace(self, row: int) -> list[Extent]:
        """Return where the tokens of a row of the mixture come from."""
        if self.mixture is None:
            return self.streams[0].trace(row)
        source, index = self.mixture.assign(np.array([row]))
        return self.streams[int(source[0])].trace(int(index[0]))

    def _gather(self, rows: Rows) -> RowBatch:
        if self.mixture is None:
            return self.streams[0].gather(rows)
        sources, indices = self.mixture.assign(rows)
        chosen = [np.flatnonzero(sources == number) for number in range(len(self.streams))]
        parts = [
            (where, stream.gather(indices[where]))
            for where, stream in zip(chosen, self.streams, strict=True)
            if len(where)
        ]
        if len(parts) == 1:
            return parts[0][1]
        first = parts[0][1]
        tokens = np.empty((len(rows), first.tokens.shape[1]), dtype=first.tokens.dtype)
        has_mask = any(part.mask is not None for _, part in parts)
        mask = np.ones((len(rows), self._length), dtype=bool) if has_mask else None
        documents = None if first.documents is None else np.empty((len(rows), self._length), dtype=np.int32)
        for where, part in parts:
            tokens[where] = part.tokens
            if mask is not None and part.mask is not None:
                mask[where] = part.mask
            if documents is not None and part.documents is not None:
                documents[where] = part.documents
        return RowBatch(tokens, documents, mask)
