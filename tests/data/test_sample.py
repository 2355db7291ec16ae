"""What a network is evaluated on stands for the whole validation part."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from tests.conftest import make_text

LENGTH = 16


def four_sources(root: Path, weights: list[float] | None) -> hr.Cache:
    """Each source has letters of its own, so that a row tells where it is from."""
    rng = np.random.default_rng(0)
    sources: list[dict[str, Any]] = []
    for number, letters in enumerate(("abcdefg", "ABCDEFG", "0123456", "!?#$%&*")):
        lines = ("".join(rng.choice(list(letters), 60)) for _ in range(400))
        (root / f"{number}.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
        sources.append({"path": str(root / f"{number}.jsonl"), "name": letters[:3]})
        if weights:
            sources[-1]["weight"] = weights[number]
    return hr.prepare(sources, tokenizer="byte", out=root / "cache")


def rows_of(samples: list[Any]) -> list[bytes]:
    return [row.tobytes() for sample in samples if sample.batch is not None for row in sample.batch.inputs]


def opened(cache: Any, length: int = LENGTH, **options: Any) -> hr.Loader:
    return hr.Loader(cache, 4, length, split="validation", validation_fraction=0.1, prefetch_batches=0, **options)


@pytest.mark.parametrize("packing", ["stream", "document"])
@pytest.mark.parametrize("weights", [None, [8, 4, 2, 1]])
def test_each_source_has_its_share_and_every_row_comes_at_most_once(
    tmp_path: Path, weights: list[float] | None, packing: Any
) -> None:
    with opened(four_sources(tmp_path, weights), packing=packing) as loader:
        some, everything = loader.sample(100 * LENGTH), loader.sample()
        total = sum(ledger.rows for ledger in loader.ledger())
    assert [sample.source for sample in some] == ["abc", "ABC", "012", "!?#"]
    counts = [len(sample.batch.inputs) for sample in some if sample.batch]
    expected = [100 * weight / 15 for weight in weights] if weights else [25] * 4
    assert counts == pytest.approx(expected, abs=1)
    assert max(Counter(rows_of(some)).values()) == max(Counter(rows_of(everything)).values()) == 1
    assert set(rows_of(some)) <= set(rows_of(everything))
    assert len(rows_of(everything)) == pytest.approx(total, abs=4)
    assert [sample.weight for sample in some] == pytest.approx([w / 15 for w in weights] if weights else [None] * 4)


@pytest.mark.usefixtures("small_scale")
def test_a_sample_is_from_all_over_a_block_and_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(f"{n:04} {make_text(40, seed=n)}".replace("\n", " ") for n in range(300)))
    source = {"path": str(tmp_path / "a.txt"), "document": "line"}
    cache = hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")
    with opened(cache, seed=1) as one, opened(cache, seed=2, num_workers=1) as two:
        sample = rows_of(one.sample(40 * LENGTH))
        assert sample == rows_of(two.sample(40 * LENGTH)), "runs are compared on the same rows"
        everything = rows_of(one.sample())
    assert sample == everything[:40]
    with opened(cache, shuffle=False) as plain:
        in_order = [row.tobytes() for _ in range(20) for row in next(plain).inputs]
    assert len(set(sample) & set(in_order[:40])) < 40


@pytest.mark.usefixtures("small_scale")
def test_only_what_the_sample_needs_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(400_000))
    with opened(tmp_path / "a.txt", tokenizer="byte", cache_dir=tmp_path / "cache") as loader:
        required: set[int] = set()
        require = loader.cache.require
        loader.cache.require = lambda segments: (required.update(segments), require(segments))[1]  # type: ignore[method-assign]
        rows = rows_of(loader.sample(20 * LENGTH))
    assert len(rows) == 20
    assert 0 < len(required) < len(loader.cache.segments) // 4


@pytest.mark.parametrize(("num_tokens", "rows"), [(2, 1), (10, 1), (17, 1), (18, 2), (40, 3), (1000, 62)])
def test_a_part_shorter_than_a_sequence_is_evaluated_in_shorter_windows(
    tmp_path: Path, num_tokens: int, rows: int
) -> None:
    (tmp_path / "a.txt").write_text("x" * (10 * num_tokens - 1))
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    with opened(cache) as loader:
        (sample,) = loader.sample()
    assert sample.batch is not None
    assert sample.batch.inputs.shape[0] == rows
    assert sample.batch.num_tokens >= (num_tokens - 1) - rows * (num_tokens < 128) - LENGTH * (num_tokens >= 128)


def test_a_part_without_anything_to_predict_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 9)
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    with opened(cache) as loader:
        assert loader.sample()[0].batch is None
