from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from tests.conftest import make_text

pytestmark = pytest.mark.usefixtures("small_scale")


def stream_of(cache: hr.Cache, part: Any, fraction: float) -> np.ndarray[Any, Any]:
    """One pass over a part in corpus order, a token a row."""
    with hr.Loader(cache, 1, 1, split=part, validation_fraction=fraction, shuffle=False, prefetch_batches=64) as loader:
        rows = [next(loader) for _ in range(loader.ledger()[0].rows)]
    return np.concatenate([rows[0].inputs[0], *(row.targets[0] for row in rows)])


def corpus_tokens(cache: hr.Cache) -> np.ndarray[Any, Any]:
    return np.concatenate([np.concatenate(list(cache.tokens(i, 0, 1 << 40))) for i in range(len(cache.segments))])


def test_of_one_text_validation_is_the_tail(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    train, validation = stream_of(cache, "train", 0.1), stream_of(cache, "validation", 0.1)
    assert np.array_equal(np.concatenate([train, validation]), corpus_tokens(cache))
    assert len(validation) == pytest.approx(cache.num_tokens * 0.1, rel=0.02)


def test_a_text_of_one_segment_is_cut_to_the_token(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 999)
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="char", out=tmp_path / "cache")
    assert len(stream_of(cache, "train", 0.1)) == 900
    assert len(stream_of(cache, "validation", 0.1)) == 100


@pytest.mark.parametrize("kind", ["files", "lines"])
def test_of_many_documents_validation_takes_whole_ones_from_everywhere(tmp_path: Path, kind: str) -> None:
    texts = [f"<{n}> {make_text(150, seed=n)}".replace("\n", " ") for n in range(300)]
    (tmp_path / "corpus").mkdir()
    if kind == "files":
        for number, text in enumerate(texts):
            (tmp_path / "corpus" / f"{number:03}.txt").write_text(text)
    else:
        (tmp_path / "corpus" / "all.txt").write_text("\n".join(texts))
    source = {"path": str(tmp_path / "corpus"), "document": "file" if kind == "files" else "line"}
    cache = hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")
    end = cache.tokenizer.end_of_text_id
    parts = {}
    for part in ("train", "validation"):
        tokens = stream_of(cache, part, 0.1)
        stops = np.flatnonzero(tokens == end)
        parts[part] = {
            bytes(piece[piece != end].astype(np.uint8)).decode() for piece in np.split(tokens, stops + 1)
        } - {""}
    assert parts["train"] | parts["validation"] == set(texts)
    assert not parts["train"] & parts["validation"]
    assert 15 <= len(parts["validation"]) <= 50
    numbers = sorted(int(text[1 : text.index(">")]) for text in parts["validation"])
    assert numbers[0] < 100
    assert numbers[-1] > 200


def test_a_small_corpus_of_few_documents_has_both_parts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one document\nanother document\nand a third one\n")
    cache = hr.prepare(
        [{"path": str(tmp_path / "a.txt"), "document": "line"}], tokenizer="byte", out=tmp_path / "cache"
    )
    train, validation = stream_of(cache, "train", 0.1), stream_of(cache, "validation", 0.1)
    assert bytes(train[train < 256].astype(np.uint8)) == b"one documentanother document"
    assert bytes(validation[validation < 256].astype(np.uint8)) == b"and a third one"


def test_raw_text_and_cache_are_split_alike(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(40_000))
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    for part in ("train", "validation"):
        options: dict[str, Any] = {"split": part, "validation_fraction": 0.2, "seed": 1}
        with (
            hr.Loader(cache, 4, 32, **options) as sealed,
            hr.Loader(tmp_path / "a.txt", 4, 32, **options, tokenizer="byte", cache_dir=tmp_path / part) as raw,
        ):
            for _ in range(200):
                assert np.array_equal(next(sealed).inputs, next(raw).inputs)
