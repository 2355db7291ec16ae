"""The laws of the order of batches hold for mixtures that change, and for those that are changed at a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import StateError
from tests.conftest import make_text
from tests.data.test_batch_order import BATCH, LENGTH, all_ranks, batches

pytestmark = pytest.mark.usefixtures("small_scale")

SCHEDULE: list[Any] = [{0: 0.9, 10: 0.2}, {0: 0.1, "5..25": 0.8}, {"1800 tokens": 0.5}]
"""Steps, a line, and tokens (96 to a step): the third source begins at step 19."""


@pytest.fixture
def cache(three_sources: list[dict[str, object]], tmp_path: Path) -> hr.Cache:
    return hr.prepare(three_sources, tokenizer="byte", out=tmp_path / "cache")


def test_the_order_is_the_same_for_any_workers_and_ranks_from_text_and_from_a_cache(
    cache: hr.Cache, three_sources: list[dict[str, object]], tmp_path: Path
) -> None:
    scheduled = [{**source, "weight": weight} for source, weight in zip(three_sources, SCHEDULE, strict=True)]
    hashes = set()
    for number, (ranks, workers, prefetch) in enumerate([(1, 2, 64), (2, 1, 0), (3, 4, 1), (6, 0, 2)]):
        options = {"seed": 3, "num_workers": workers, "prefetch_batches": prefetch}
        hashes.add(all_ranks(cache, ranks, 60, weights=SCHEDULE, **options))
        hashes.add(all_ranks(scheduled, ranks, 60, tokenizer="byte", cache_dir=tmp_path / f"raw-{number}", **options))
    assert len(hashes) == 1
    assert hashes != {all_ranks(cache, 1, 60, seed=3)}


CHANGED: dict[str, Any] = {"weights": [0, {0: 1, "30..35": 5}, 1], "earlier_weights": [(12, SCHEDULE[:2])]}


@pytest.mark.parametrize("mixing", [{"weights": SCHEDULE}, CHANGED], ids=["schedule", "changed"])
@pytest.mark.parametrize("packing", ["stream", "document"])
def test_restored_at_every_step_the_rest_is_the_same(cache: hr.Cache, mixing: dict[str, Any], packing: str) -> None:
    options: dict[str, Any] = {**mixing, "packing": packing, "seed": 5}
    with hr.Loader(cache, BATCH, LENGTH, **options) as loader:
        states, expected = [], []
        for _ in range(40):
            states.append(json.dumps(loader.state()))
            expected.append(next(loader).inputs)
    assert max(map(len, states)) < 1024
    for step, state in enumerate(states):
        ranks = (1, 2, 3)[step % 3]
        with hr.Loader(cache, BATCH, LENGTH, **options, world_size=ranks, num_workers=step % 3) as loader:
            loader.restore(json.loads(state))
            for rows in expected[step:]:
                assert np.array_equal(next(loader).inputs, rows[: BATCH // ranks])


def test_a_state_goes_on_with_another_mixture_from_its_step_on_and_from_no_earlier_one(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH, weights=SCHEDULE) as loader:
        before = batches(loader, 12)
        state = loader.state(12)
    for until, is_fine in ((11, False), (12, True), (20, True)):
        with hr.Loader(cache, BATCH, LENGTH, weights=[1, 1, 9], earlier_weights=[(until, SCHEDULE)]) as loader:
            if not is_fine:
                with pytest.raises(StateError, match=r"mixture was .* earlier_weights"):
                    loader.restore(state)
                continue
            assert all(np.array_equal(*pair) for pair in zip(batches(loader, 12), before, strict=True))
            loader.restore(state)
            assert loader.step == 12
    with hr.Loader(cache, BATCH, LENGTH, weights=[1, 1, 9]) as loader, pytest.raises(StateError, match="mixture was"):
        loader.restore(state)


def test_an_added_source_moves_no_row_before_its_step(tmp_path: Path) -> None:
    for number, name in enumerate("abc"):
        (tmp_path / f"{name}.txt").write_text(make_text(40_000, seed=number))
    two = [{"path": str(tmp_path / f"{name}.txt"), "name": name, "weight": 1} for name in "ab"]
    three = [*two, {"path": str(tmp_path / "c.txt"), "name": "c", "weight": {0: 1, 40: 3}}]
    for few, many, earlier in ((two, three, [1, 1]), ([{**two[0], "weight": None}], three, None)):
        with hr.Loader(few, BATCH, LENGTH, tokenizer="byte", cache_dir=tmp_path / f"few-{earlier}") as loader:
            before, states = batches(loader, 30), [loader.state(step) for step in range(31)]
        options: dict[str, Any] = {"tokenizer": "byte", "cache_dir": tmp_path / f"many-{earlier}"}
        with hr.Loader(many, BATCH, LENGTH, earlier_weights=[(30, earlier)], **options) as loader:
            after = batches(loader, 70)
            assert all(np.array_equal(*pair) for pair in zip(after[:30], before, strict=True))
            for step in (0, 7, 30):
                loader.restore(states[step])
                assert np.array_equal(batches(loader, 40)[-1], after[step + 39])
            rows = loader.rows_by_source(60)
            assert sum(rows.values()) == 60 * BATCH
            assert rows["c"] == pytest.approx(BATCH * (10 / 3 + 20 * 3 / 5), abs=20)


@pytest.mark.parametrize("packing", ["stream", "document"])
def test_the_ledger_of_every_source_adds_up(cache: hr.Cache, packing: str) -> None:
    with hr.Loader(cache, BATCH, LENGTH, weights=SCHEDULE, packing=packing) as loader:
        ledgers = loader.ledger()
        rows = [source for step in range(40) for source in (t.spans[0].source for t in loader.explain(step))]
        counted = loader.rows_by_source(40)
    owned = [0] * len(cache.sources)
    for index, segment in enumerate(cache.segments):
        owned[segment.source] += cache.entry(index).num_tokens
    assert [ledger.tokens for ledger in ledgers] == owned
    assert [ledger.source for ledger in ledgers] == [source.label for source in cache.sources]
    assert all(ledger.trained + ledger.carried + ledger.dropped == ledger.tokens for ledger in ledgers)
    assert counted == {source.label: rows.count(source.label) for source in cache.sources}


def test_a_pass_ends_when_a_source_has_been_read_once(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH, weights={cache.sources[2].label: {0: 0.001, 30: 50}}) as loader:
        steps = loader.steps_per_epoch
        rows = [ledger.rows for ledger in loader.ledger()]
        assert all(read <= there for read, there in zip(loader.rows_by_source(steps).values(), rows, strict=True))
        assert any(read > there for read, there in zip(loader.rows_by_source(steps + 1).values(), rows, strict=True))


def test_validation_is_by_the_mixture_at_the_end_and_shows_every_source(cache: hr.Cache) -> None:
    options: dict[str, Any] = {"split": "validation", "validation_fraction": 0.2}
    with hr.Loader(cache, BATCH, LENGTH, weights=[{0: 1, 50: 0}, {50: 3}, 1], **options) as loader:
        samples = loader.sample(4096)
    assert [sample.weight for sample in samples] == [0, 0.75, 0.25]
    assert all(sample.batch is not None and len(sample.batch.inputs) > 8 for sample in samples)
