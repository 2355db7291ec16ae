"""The laws of the order of batches: what it depends on, exact resume, shares of a mixture."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import StateError
from tests.conftest import make_text

pytestmark = pytest.mark.usefixtures("small_scale")


BATCH, LENGTH = 6, 16


def batches(loader: hr.Loader, count: int) -> list[np.ndarray[Any, Any]]:
    return [
        np.concatenate([batch.inputs, batch.targets[:, -1:]], axis=1)
        for batch, _ in zip(loader, range(count), strict=False)
    ]


def all_ranks(source: Any, world_size: int, count: int, **options: Any) -> str:
    """SHA-256 of `count` global batches, put together from the rows of every rank."""
    parts = []
    for rank in range(world_size):
        with hr.Loader(source, BATCH, LENGTH, rank=rank, world_size=world_size, **options) as loader:
            parts.append(batches(loader, count))
    state = hashlib.sha256()
    for rows in zip(*parts, strict=True):
        state.update(np.concatenate(rows).tobytes())
    return state.hexdigest()


@pytest.fixture
def mixture_cache(three_sources: list[dict[str, object]], tmp_path: Path) -> hr.Cache:
    return hr.prepare(three_sources, tokenizer="bpe:400", out=tmp_path / "cache")


WORKERS, PREFETCH, RANKS = (1, 2, 4), (0, 1, 64), (1, 2, 3, 6)
ALL_WAYS = list(itertools.product(range(len(WORKERS)), range(len(PREFETCH)), range(len(RANKS))))
EVERY_PAIR = [way for way in ALL_WAYS if sum(way) % 3 == 0]
"""A third of the ways, in which each value of one factor meets each value of every other."""


@pytest.mark.parametrize(
    ("ways", "count"),
    [(EVERY_PAIR, 700), pytest.param(ALL_WAYS, 2000, marks=pytest.mark.soak)],
    ids=["pairs", "all"],
)
def test_order_depends_on_nothing_but_its_definition(
    three_sources: list[dict[str, object]],
    mixture_cache: hr.Cache,
    tmp_path: Path,
    ways: list[tuple[int, int, int]],
    count: int,
) -> None:
    """Worker threads 1, 2, 4 x prefetch 0, 1, 64 x ranks 1, 2, 3, 6 x raw text and cache."""
    with hr.Loader(mixture_cache, BATCH, LENGTH) as loader:
        for source, ledger in zip(three_sources, loader.ledger(), strict=True):
            assert ledger.rows < count * BATCH * float(str(source["weight"])), "every source is read more than once"
    tokenizer = str(mixture_cache.path / "tokenizer.json")
    hashes = set()
    for workers, prefetch, ranks in ways:
        options: dict[str, Any] = {"seed": 3, "num_workers": WORKERS[workers], "prefetch_batches": PREFETCH[prefetch]}
        hashes.add(all_ranks(mixture_cache, RANKS[ranks], count, **options))
        options |= {"tokenizer": tokenizer, "cache_dir": tmp_path / f"raw-{workers}-{prefetch}-{ranks}"}
        hashes.add(all_ranks(three_sources, RANKS[ranks], count, **options))
    assert len(hashes) == 1


GOLDEN_ORDER = "ef728beded8eb3fe"


def test_order_is_fixed_forever(three_sources: list[dict[str, object]], tmp_path: Path) -> None:
    """A golden hash: a change of this value breaks every saved run, and needs a new state version."""
    cache = hr.prepare(three_sources, tokenizer="byte", out=tmp_path / "cache")
    with hr.Loader(cache, BATCH, LENGTH, seed=3, prefetch_batches=0) as loader:
        rows = [
            [(span.document.rpartition("/")[2], span.start) for t in loader.explain(s) for span in t.spans]
            for s in (0, 1, 400)
        ]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == GOLDEN_ORDER


def test_seeds_and_epochs_differ_and_every_row_comes_once_a_pass(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(50_000))
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    num_rows = (cache.num_tokens - 1) // LENGTH
    with hr.Loader(cache, 1, LENGTH, seed=1) as one, hr.Loader(cache, 1, LENGTH, seed=2) as two:
        first, second = batches(one, 2 * num_rows), batches(two, num_rows)
    assert not np.array_equal(np.concatenate(first[:num_rows]), np.concatenate(second))
    passes = [np.concatenate(first[:num_rows]), np.concatenate(first[num_rows:])]
    assert not np.array_equal(*passes)
    # Joined in corpus order, the rows of the first pass are the corpus.
    stream = np.concatenate([np.concatenate(list(cache.tokens(i, 0, 1 << 40))) for i in range(len(cache.segments))])
    with hr.Loader(cache, 1, LENGTH, shuffle=False) as plain:
        rows = batches(plain, num_rows)
    assert np.array_equal(np.concatenate([row[0, :-1] for row in rows]), stream[: num_rows * LENGTH])
    # The windows of a shuffled pass lie over the permuted segments, so compare what they hold: each token once.
    counts = [
        np.bincount(np.concatenate([r[:, :-1].ravel() for r in rows]), minlength=257) for rows in (passes[:1], rows)
    ]
    assert np.abs(counts[0] - counts[1]).sum() <= 2 * LENGTH


@pytest.mark.parametrize("packing", ["stream", "document"])
def test_restored_at_every_step_the_rest_is_the_same(mixture_cache: hr.Cache, packing: str) -> None:
    options: dict[str, Any] = {"packing": packing, "seed": 5}
    with hr.Loader(mixture_cache, BATCH, LENGTH, **options) as loader:
        states, expected = [], []
        for _ in range(40):
            states.append(json.dumps(loader.state()))
            expected.append(next(loader))
    for step, state in enumerate(states):
        with hr.Loader(
            mixture_cache, BATCH, LENGTH, **options, prefetch_batches=step % 3, num_workers=1 + step % 2
        ) as loader:
            loader.restore(json.loads(state))
            for batch in expected[step:]:
                found = next(loader)
                assert found.step == batch.step
                assert np.array_equal(found.inputs, batch.inputs)
                assert np.array_equal(found.targets, batch.targets)


def test_restored_at_random_steps_of_a_long_run_with_other_workers_and_ranks(mixture_cache: hr.Cache) -> None:
    with hr.Loader(mixture_cache, BATCH, LENGTH, seed=9) as loader:
        rows = batches(loader, 6000)
        template = loader.state()
    rng = random.Random(0)
    for _ in range(100):
        step, world_size, workers = rng.randrange(5900), rng.choice([1, 2, 3, 6]), rng.choice([0, 1, 3])
        rank = rng.randrange(world_size)
        with hr.Loader(
            mixture_cache, BATCH, LENGTH, seed=9, rank=rank, world_size=world_size, num_workers=workers
        ) as loader:
            loader.restore({**template, "step": step})
            share = BATCH // world_size
            for found, expected in zip(batches(loader, 20), rows[step:], strict=False):
                assert np.array_equal(found, expected[rank * share : (rank + 1) * share])


def test_state_is_small_and_guards_its_stream(mixture_cache: hr.Cache) -> None:
    with hr.Loader(mixture_cache, BATCH, LENGTH, seed=2**63) as loader:
        loader.seek(10**15)
        assert len(json.dumps(loader.state())) < 1024
        state = loader.state()
    for change, name in (
        ({"seed": 1}, "seed"),
        ({"sequence_length": 8}, "sequence_length"),
        ({"batch_size": 12}, "batch_size"),
        ({"packing": "document"}, "packing"),
        ({"weights": [1, 1, 1]}, "mixture"),
        ({"split": "train", "validation_fraction": 0.1}, "split"),
    ):
        options: dict[str, Any] = {"batch_size": BATCH, "sequence_length": LENGTH, "seed": 2**63, **change}
        with hr.Loader(mixture_cache, **options) as other, pytest.raises(StateError, match=name):
            other.restore(state)
    with hr.Loader(mixture_cache, BATCH, LENGTH) as other, pytest.raises(StateError, match="version"):
        other.restore({"version": 99})


def test_mixture_has_its_shares(mixture_cache: hr.Cache) -> None:
    with hr.Loader(mixture_cache, 64, LENGTH, weights=[6, 3, 1]) as loader:
        seen = [trace.spans[0].source.rpartition("/")[2] for step in range(64) for trace in loader.explain(step)]
    assert [round(10 * seen.count(name) / len(seen), 1) for name in ("large.txt", "lines.jsonl", "small")] == [6, 3, 1]


def test_sources_without_weights_are_one_corpus(three_sources: list[dict[str, object]], tmp_path: Path) -> None:
    bare = [{"path": source["path"]} for source in three_sources]
    cache = hr.prepare(bare, tokenizer="byte", out=tmp_path / "cache")
    with hr.Loader(cache, 1, LENGTH) as loader:
        assert loader.steps_per_epoch == (cache.num_tokens - 1) // LENGTH
        assert loader.ledger()[0].tokens == cache.num_tokens
