"""The sizes by which the data engine divides its work, in one object that tests replace by a smaller one.

docs/design/scale.md says why it is one object of the process and not an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of segments, blocks and batches of work. Order and caches depend on them: the defaults never change."""

    segment_bytes: int = 8 << 20
    """Text of a segment: the unit of order and of work."""
    group_bytes: int = 4 << 20
    """Mean size of a segment of small files."""
    group_minimum_bytes: int = 1 << 20
    """Smallest segment of small files."""
    boundary_window_bytes: int = 1 << 20
    """How far beyond its nominal end a segment may reach to end with a document."""
    split_bytes: int = 256 << 10
    """Text that is split into documents at a time."""
    first_block_bytes: int = 64 << 20
    """The first shuffle block of a pass; each following one is twice as large."""
    largest_window_block_bytes: int = 256 << 20
    """The largest shuffle block with stream packing."""
    largest_packed_block_bytes: int = 64 << 20
    """The largest shuffle block with document packing: rows of tiny documents take more memory than the documents."""
    permuted_rows: int = 8192
    """Rows of a block whose shuffled places are computed together."""
    hashed_tokens: int = 1 << 16
    """Tokens that are hashed at a time to draw documents for validation."""
    drawn_documents: int = 1 << 16
    """Documents that are drawn at a time for validation."""
    seam_tokens: int = 1 << 18
    """Tokens of windows across several pieces of text that are put together at a time."""
    short_piece_tokens: int = 128
    """Mean length below which pieces are put together by an index for every token, not by a copy for every piece."""
    token_segment_tokens: int = 2 << 20
    """Tokens of a segment of a token file that another tool has written."""
    token_cut_window_tokens: int = 64 << 10
    """How far before its nominal end such a segment may end, to end with a document."""


_current = Scale()


def current_scale() -> Scale:
    """Return the sizes in force."""
    return _current


@contextmanager
def use_scale(scale: Scale) -> Iterator[None]:
    """Replace the sizes for the whole process until the block ends: a few kilobytes then show what gigabytes would."""
    global _current
    before, _current = _current, scale
    try:
        yield
    finally:
        _current = before
