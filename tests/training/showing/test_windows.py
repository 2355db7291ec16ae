"""Windows that are dealt out: each is shown once, with those of other sequences, and resuming loses none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.data.batch import Batch
from headrace.training.showing.presentation import TokenBatch
from headrace.training.showing.windows import MOST_TOGETHER, DealtWindows
from headrace.training.showing.windows import deal as deal_one

ROWS, LENGTH = 3, 16


class Numbers:
    """A stream of batches whose tokens are all different, which may be asked to stop in the middle."""

    def __init__(self) -> None:
        self.step, self.stops_at = 0, -1

    def __next__(self) -> Batch:
        if self.step == self.stops_at:
            raise InterruptedError
        self.step += 1
        return numbered(self.step - 1)

    def state(self) -> dict[str, Any]:
        return {"step": self.step}

    def restore(self, state: dict[str, Any]) -> None:
        assert state.keys() == {"step"}, "the state of the batches alone"
        self.step = state["step"]


def numbered(step: int, rows: slice = slice(None)) -> Batch:
    tokens = np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) + 1000 * step
    return Batch(step, tokens, tokens + 1, (tokens % 7).astype(np.int32), tokens % 5 > 0).rows(rows)


def deal(batches: list[Batch]) -> list[TokenBatch]:
    return [deal_one(batches, number) for number in range(len(batches))]


def windows_of(batch: TokenBatch, window: int) -> list[list[int]]:
    found: list[list[int]] = batch.inputs.reshape(-1, window).tolist()
    return found


def test_every_window_is_shown_once_and_each_batch_has_one_of_every_sequence() -> None:
    batches = [numbered(step) for step in range(4)]
    dealt = deal(batches)
    assert [batch.inputs.shape for batch in dealt] == [(ROWS, LENGTH)] * 4
    expected = sorted(window for batch in batches for window in windows_of(batch, 4))
    assert sorted(window for batch in dealt for window in windows_of(batch, 4)) == expected
    for batch in dealt:
        sequences = {(window[0] // 1000, window[0] % 1000 // LENGTH) for window in windows_of(batch, 4)}
        assert len(sequences) == 4 * ROWS


def test_every_update_has_a_beginning_of_some_sequence() -> None:
    for batch in deal([numbered(step) for step in range(4)]):
        assert sum(window[0] % 1000 % LENGTH == 0 for window in windows_of(batch, 4)) == ROWS


def test_batches_that_are_not_alike_stay_as_they_are() -> None:
    """As somebody else's pipeline may give them: a mask in some of them, or fewer rows in the last of an epoch."""
    unmasked = Batch(0, numbered(0).inputs, numbered(0).targets)
    for other in (unmasked, numbered(1, slice(0, 2))):
        batches = [numbered(0), other]
        assert deal(batches) == batches


def test_few_batches_are_read_together_however_short_windows_are() -> None:
    numbers = Numbers()
    DealtWindows(numbers).next(1)
    assert numbers.step == LENGTH + 1 == MOST_TOGETHER + 1, "and one ahead"
    adjacent = deal([numbered(step) for step in range(2)])[0].inputs.reshape(-1, 8)
    assert (np.diff(adjacent) == 1).all(), "of each sequence some windows that stand beside each other"


def test_targets_documents_and_masks_go_with_their_tokens() -> None:
    for batch in deal([numbered(step) for step in range(2)]):
        assert np.array_equal(batch.targets, batch.inputs + 1)
        assert batch.documents is not None and np.array_equal(batch.documents, batch.inputs % 7)
        assert batch.mask is not None and np.array_equal(batch.mask, batch.inputs % 5 > 0)
        assert batch.num_tokens == batch.mask.sum()


def test_processes_deal_out_their_rows_of_what_one_process_would() -> None:
    whole = deal([numbered(step) for step in range(4)])
    for rows in (slice(0, 1), slice(1, 3)):
        part = deal([numbered(step, rows) for step in range(4)])
        for mine, all_rows in zip(part, whole, strict=True):
            assert np.array_equal(mine.inputs, all_rows.inputs[rows])


WANTED = [4] * 6 + [8] * 5 + [0] * 3
"""Windows that a run wants at each of its steps: they grow while batches are dealt out."""


def shown(stream: DealtWindows, first: int = 0) -> list[tuple[list[list[int]], int]]:
    found = [stream.next(window) for window in WANTED[first:]]
    return [(batch.inputs.tolist(), window) for batch, window in found]


def test_windows_grow_when_all_that_are_dealt_out_were_shown() -> None:
    windows = [window for _, window in shown(DealtWindows(Numbers()))]
    assert windows == [4] * 8 + [8] * 4 + [0] * 2


@pytest.mark.parametrize("step", range(len(WANTED)))
def test_resuming_at_any_step_shows_what_an_unbroken_run_would(step: int) -> None:
    expected = shown(DealtWindows(Numbers()))
    stream = DealtWindows(Numbers())
    for window in WANTED[:step]:
        stream.next(window)
    resumed = DealtWindows(Numbers())
    resumed.restore(stream.state())
    assert resumed.state() == stream.state()
    assert shown(resumed, step) == expected[step:]


@pytest.mark.parametrize("stops_at", range(len(WANTED)))
def test_a_request_to_stop_while_batches_are_read_loses_none(stops_at: int) -> None:
    expected = shown(DealtWindows(Numbers()))
    numbers, seen = Numbers(), []
    numbers.stops_at = stops_at
    stream = DealtWindows(numbers)
    with pytest.raises(InterruptedError):
        for window in WANTED:
            batch, used = stream.next(window)
            seen.append((batch.inputs.tolist(), used))
    resumed = DealtWindows(Numbers())
    resumed.restore(stream.state())
    assert seen + shown(resumed, len(seen)) == expected
    numbers.stops_at = -1
    assert seen + shown(stream, len(seen)) == expected


def test_batches_are_read_one_by_one() -> None:
    numbers, read = Numbers(), []
    stream = DealtWindows(numbers)
    for _ in range(9):
        stream.next(4)
        read.append(numbers.step)
    assert read == [5, 6, 7, 8, 9, 10, 11, 12, 13]


def test_sequences_of_another_length_are_not_dealt_out() -> None:
    """As those of somebody else's pipeline, which the configuration does not know."""
    stream = DealtWindows(Numbers())
    for step in range(3):
        batch, _ = stream.next(5)
        assert np.array_equal(batch.inputs, numbered(step).inputs)
        assert stream.state() == {"step": step + 1}
