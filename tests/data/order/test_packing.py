from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.data.explain.statistics import chunking_statistics
from headrace.data.order.packing import best_fit, pack_documents
from tests.conftest import make_text

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=80)


@settings(deadline=None)
@given(SIZES, st.integers(1, 40))
def test_every_document_is_packed_once_and_cut_only_if_it_must_be(sizes: list[int], length: int) -> None:
    ends = np.cumsum(sizes)
    rows = pack_documents(np.append(0, ends[:-1]), ends, length)
    covered = np.zeros(int(ends[-1]), dtype=int)
    first = 0
    for stop in rows.row_stops.tolist():
        assert stop > first  # no empty row
        assert rows.lengths[first:stop].sum() <= length
        first = stop
    for start, count in zip(rows.starts.tolist(), rows.lengths.tolist(), strict=True):
        covered[start : start + count] += 1
    starts = np.concatenate([[0], ends[:-1]])
    expected = np.ones_like(covered)
    expected[ends - 1] = 0  # end-of-text is only ever a target
    assert np.array_equal(covered, expected)
    whole = {(int(s), int(e - s - 1)) for s, e in zip(starts, ends, strict=True) if 0 < e - s - 1 <= length}
    assert whole <= set(zip(rows.starts.tolist(), rows.lengths.tolist(), strict=True))


@given(SIZES.map(lambda sizes: [min(size, 40) for size in sizes]))
def test_best_fit_is_what_the_textbook_does(sizes: list[int]) -> None:
    """Items longest first, each into the fullest row that takes it."""
    row_of, num_rows = best_fit(np.array(sizes), 40)
    room: list[int] = []
    for size in sorted(sizes, reverse=True):
        fits = [index for index, left in enumerate(room) if left >= size]
        if fits:
            room[min(fits, key=lambda index: room[index])] -= size
        else:
            room.append(40 - size)
    assert num_rows == len(room)
    used = np.bincount(row_of, weights=sizes, minlength=num_rows)
    assert sorted((40 - used).tolist()) == sorted(room)


def test_a_realistic_corpus_fills_99_percent_without_cutting_what_fits(tmp_path: Path) -> None:
    """Lengths spread like web text: many short documents, some of several rows."""
    rng = np.random.default_rng(0)
    lines = [make_text(int(size), seed=n).replace("\n", " ") for n, size in enumerate(rng.lognormal(5.5, 1.1, 3000))]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    cache = hr.prepare([{"path": str(tmp_path / "a.txt"), "document": "line"}], "bpe:400", out=tmp_path / "cache")
    stats = chunking_statistics(cache, 256, "document")
    assert stats.documents == 3000
    assert stats.fill_percent > 99
    assert 0 < stats.documents_split < 1000
    with hr.Loader(cache, 8, 256, packing="document") as loader:
        ledger = loader.ledger()[0]
    assert ledger.fill_percent == pytest.approx(stats.fill_percent)
    assert ledger.trained == cache.num_tokens


@pytest.mark.usefixtures("small_scale")
def test_batches_hold_whole_documents_with_their_targets(tmp_path: Path) -> None:
    documents = [make_text(1 + 7 * n % 90, seed=n).replace("\n", " ")[: 1 + n % 31] for n in range(400)]
    (tmp_path / "a.txt").write_text("\n".join(documents))
    cache = hr.prepare([{"path": str(tmp_path / "a.txt"), "document": "line"}], "byte", out=tmp_path / "cache")
    end = cache.tokenizer.end_of_text_id
    seen = []
    with hr.Loader(cache, 1, 128, packing="document", seed=4) as loader:
        for _ in range(loader.steps_per_epoch):
            batch = next(loader)
            assert batch.documents is not None
            assert batch.mask is not None
            assert np.array_equal(batch.mask, batch.documents > 0)
            for number in range(1, batch.documents.max() + 1):
                where = np.flatnonzero(batch.documents[0] == number)
                inputs, targets = batch.inputs[0, where], batch.targets[0, where]
                assert np.array_equal(inputs[1:], targets[:-1])
                assert targets[-1] == end
                seen.append(bytes(inputs.astype(np.uint8)).decode())
            assert (batch.inputs[0, batch.documents[0] == 0] == end).all()
    assert sorted(seen) == sorted(documents)
    assert max(len(document.encode()) for document in documents) <= 128
