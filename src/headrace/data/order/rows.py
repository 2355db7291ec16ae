"""Rows of tokens, and where on the endless line of a stream they and their blocks stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data.order.blocks import SegmentIds

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """Part of a pass whose rows are shuffled together."""

    epoch: int
    """Number of the pass, from 0."""
    number: int
    """Number of the block in its pass, from 0."""
    segments: SegmentIds
    start: int
    """Position on the endless line where the block begins."""
    stop: int
    """Position after its last one."""
    first_row: int
    """Number of its first row in the stream."""
    stop_row: int
    """Number of the first row after it."""


@dataclass(frozen=True)
class Extent:
    """Tokens [start, stop) of a segment, and where on the endless line of tokens they stand."""

    segment: int
    start: int
    stop: int
    position: int


@dataclass(frozen=True)
class TokenRanges:
    """Ranges of tokens of one segment, in order, and where on the endless line of tokens each stands."""

    segment: int
    starts: Rows
    stops: Rows
    positions: Rows


@dataclass(frozen=True)
class RowBatch:
    """Rows of tokens: the first T are inputs, the last T targets."""

    tokens: npt.NDArray[Any]
    documents: npt.NDArray[np.int32] | None = None
    """With document packing: which document of its row each input belongs to, from 1; 0 is padding."""
    mask: npt.NDArray[np.bool_] | None = None
    """Which targets count; None: all."""


def join_rows(parts: Sequence[RowBatch]) -> RowBatch:
    """Put batches of rows one below the other."""
    if len(parts) == 1:
        return parts[0]
    documents = [part.documents for part in parts if part.documents is not None]
    masks = [part.mask for part in parts if part.mask is not None]
    return RowBatch(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate(documents) if documents else None,
        np.concatenate(masks) if masks else None,
    )
