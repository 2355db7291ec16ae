"""The order of a pass over a corpus: segments permuted by seed and epoch, and grouped into blocks.

Within a block all rows are shuffled; so a block is what must be tokenised before its first row can be served. The first
block of a pass is small, so that training starts at once, and the following ones grow, so that they mix more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.data.corpus.segments import Segment
from headrace.data.order.permutation import make_key, permute

SegmentIds = npt.NDArray[np.int64]


def epoch_blocks(
    segments: Sequence[Segment],
    chosen: SegmentIds,
    seed: int,
    epoch: int,
    shuffle: bool,
    first_block_bytes: int,
    largest_block_bytes: int,
) -> list[SegmentIds]:
    """Return the blocks of one pass over the chosen segments: a pure function of the arguments."""
    units = _units(segments, chosen, epoch)
    if shuffle:
        places = permute(np.arange(len(units)), len(units), make_key("segments", seed, epoch))
        ordered: list[list[int]] = [[] for _ in units]
        for unit, place in zip(units, places.tolist(), strict=True):
            ordered[place] = unit
        units = ordered
    blocks: list[SegmentIds] = []
    block: list[int] = []
    nbytes, limit = 0, first_block_bytes
    for segment in (segment for unit in units for segment in unit):
        block.append(segment)
        nbytes += segments[segment].nbytes
        if nbytes >= limit:
            blocks.append(np.array(block))
            block, nbytes, limit = [], 0, min(2 * limit, largest_block_bytes)
    if block:
        blocks.append(np.array(block))
    return _without_sliver(blocks, segments)


def _without_sliver(blocks: list[SegmentIds], segments: Sequence[Segment]) -> list[SegmentIds]:
    """Divide the last two blocks of a pass evenly where the last is less than half of the one before.

    The rows of a small last block would be shuffled among few neighbours only.
    """
    if len(blocks) < 2:
        return blocks
    before, last = blocks[-2:]
    sizes = [sum(segments[index].nbytes for index in block.tolist()) for block in (before, last)]
    if 2 * sizes[1] >= sizes[0]:
        return blocks
    both = np.concatenate([before, last])
    filled = np.cumsum([segments[index].nbytes for index in both.tolist()])
    cut = 1 + int(np.argmin(np.abs(filled[:-1] - filled[-1] / 2)))
    return [*blocks[:-2], both[:cut], both[cut:]]


def _units(segments: Sequence[Segment], chosen: SegmentIds, epoch: int) -> list[list[int]]:
    """Return the units that are permuted: single segments, but on the first pass whole compressed files.

    A compressed file cannot be read from its middle. After the first pass its tokens are in the cache, and its segments
    are permuted like all others.
    """
    units: list[list[int]] = []
    for index in chosen.tolist():
        segment = segments[index]
        joins = epoch == 0 and segment.needs_previous and units and units[-1][-1] == index - 1
        if joins:
            units[-1].append(index)
        else:
            units.append([index])
    return units
