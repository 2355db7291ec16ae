from __future__ import annotations

import numpy as np
import pytest

from headrace.data.corpus.segments import Segment
from headrace.data.order.blocks import epoch_blocks


def blocks_of(num_segments: int) -> list[int]:
    segments = [Segment(0, "range", "a.txt", n, 8, str(n)) for n in range(num_segments)]
    blocks = epoch_blocks(segments, np.arange(num_segments), 0, 0, True, first_block_bytes=64, largest_block_bytes=256)
    assert sorted(np.concatenate(blocks).tolist()) == list(range(num_segments))
    return [8 * len(block) for block in blocks]


@pytest.mark.parametrize("num_segments", range(1, 150))
def test_no_block_of_a_pass_is_a_sliver(num_segments: int) -> None:
    sizes = blocks_of(num_segments)
    assert max(sizes) <= 256
    assert len(sizes) == 1 or 2 * sizes[-1] >= sizes[-2]


def test_blocks_grow() -> None:
    assert blocks_of(8 + 16 + 32 + 32) == [64, 128, 256, 256]
    assert blocks_of(9) == [32, 40]
