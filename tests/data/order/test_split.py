from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.data.corpus.scale import current_scale, use_scale
from headrace.data.order.split import Split
from tests.conftest import make_text

pytestmark = pytest.mark.usefixtures("small_scale")


def stream_of(cache: hr.Cache, part: Any, fraction: float) -> np.ndarray[Any, Any]:
    """One pass over a part in corpus order, a token a row."""
    with hr.Loader(cache, 1, 1, split=part, validation_fraction=fraction, shuffle=False, prefetch_batches=64) as loader:
        rows = [next(loader) for _ in range(loader.ledger()[0].rows)]
    return np.concatenate([rows[0].inputs[0], *(row.targets[0] for row in rows)])


def corpus_tokens(cache: hr.Cache) -> np.ndarray[Any, Any]:
    return np.concatenate([np.concatenate(list(cache.tokens(i, 0, 1 << 40))) for i in range(len(cache.segments))])


def share_of(cache: hr.Cache, part: Any, fraction: float) -> float:
    with hr.Loader(cache, 1, 1, split=part, validation_fraction=fraction) as loader:
        return loader.ledger()[0].tokens / cache.num_tokens


def test_of_one_text_validation_is_the_tail_of_every_segment(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    train, validation = stream_of(cache, "train", 0.1), stream_of(cache, "validation", 0.1)
    assert len(cache.segments) == 5
    parts: tuple[list[Any], list[Any]] = ([], [])
    for segment in range(5):
        tokens = np.concatenate(list(cache.tokens(segment, 0, 1 << 40)))
        cut = len(tokens) - round(0.1 * len(tokens))
        parts[0].append(tokens[:cut])
        parts[1].append(tokens[cut:])
    assert np.array_equal(train, np.concatenate(parts[0]))
    assert np.array_equal(validation, np.concatenate(parts[1]))


def test_a_text_of_one_segment_is_cut_to_the_token(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 999)
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="char", out=tmp_path / "cache")
    assert len(stream_of(cache, "train", 0.1)) == 900
    assert len(stream_of(cache, "validation", 0.1)) == 100


def write_corpus(root: Path, kind: str) -> dict[str, Any]:
    """The corpora of issue 11 at the scale of these tests: few documents, or documents of very different sizes."""
    source: dict[str, Any] = {"path": str(root / "corpus")}
    root = root / "corpus"
    root.mkdir()
    if kind == "one text":
        (root / "a.txt").write_text(make_text(1500))
    elif kind == "8 books":
        (root / "a.txt").write_text("\n=====\n".join(make_text(6000, seed=n) for n in range(8)))
        source |= {"document": "delimiter", "delimiter": "\n=====\n"}
    elif kind == "25 files":
        for number in range(25):
            (root / f"{number:02}.txt").write_text(make_text(1800, seed=number))
    elif kind == "30 lines":
        lines = (json.dumps({"text": make_text(4000, seed=n)}) for n in range(30))
        (root / "a.jsonl").write_text("\n".join(lines))
    else:
        texts = [make_text(2, seed=n)[:2].replace("\n", " ") for n in range(100)] + [make_text(1800).replace("\n", " ")]
        (root / "a.txt").write_text("\n".join(texts))
        source["document"] = "line"
    return source


@pytest.mark.parametrize("kind", ["one text", "8 books", "25 files", "30 lines", "one of 900 kB, 100 of 1 kB"])
def test_validation_has_about_its_fraction_of_every_corpus(tmp_path: Path, kind: str) -> None:
    cache = hr.prepare([write_corpus(tmp_path, kind)], tokenizer="byte", out=tmp_path / "cache")
    validation = share_of(cache, "validation", 0.05)
    assert validation == pytest.approx(0.05, rel=0.25)
    assert share_of(cache, "train", 0.05) == pytest.approx(1 - validation)


@pytest.mark.parametrize("size", [30, 300, 3000])
@pytest.mark.parametrize("fraction", [0.02, 0.2])
def test_the_share_does_not_depend_on_the_size_of_documents(tmp_path: Path, size: int, fraction: float) -> None:
    texts = [make_text(size, seed=n).replace("\n", " ") for n in range(240_000 // size)]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    source = {"path": str(tmp_path / "a.txt"), "document": "line"}
    cache = hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")
    assert share_of(cache, "validation", fraction) == pytest.approx(fraction, rel=0.3)


def documents_of(cache: hr.Cache, part: Any, fraction: float) -> list[str]:
    tokens, end = stream_of(cache, part, fraction), cache.tokenizer.end_of_text_id
    pieces = np.split(tokens, np.flatnonzero(tokens == end) + 1)
    return [bytes(piece[piece != end].astype(np.uint8)).decode() for piece in pieces if len(piece)]


@pytest.mark.parametrize("kind", ["files", "lines"])
def test_of_many_documents_validation_takes_whole_ones_from_everywhere(tmp_path: Path, kind: str) -> None:
    texts = [f"<{n}> {make_text(60, seed=n)}".replace("\n", " ") for n in range(900)]
    (tmp_path / "corpus").mkdir()
    if kind == "files":
        for number, text in enumerate(texts):
            (tmp_path / "corpus" / f"{number:03}.txt").write_text(text)
    else:
        (tmp_path / "corpus" / "all.txt").write_text("\n".join(texts))
    source = {"path": str(tmp_path / "corpus"), "document": "file" if kind == "files" else "line"}
    cache = hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")
    train, validation = documents_of(cache, "train", 0.2), documents_of(cache, "validation", 0.2)
    assert set(train) | set(validation) == set(texts)
    assert not set(train) & set(validation)
    assert 130 <= len(validation) <= 230
    numbers = sorted(int(text[1 : text.index(">")]) for text in validation)
    assert numbers[0] < 50
    assert numbers[-1] > 850


def test_equal_documents_are_on_one_side(tmp_path: Path) -> None:
    """Three copies of every document, far apart, in other files and beside other neighbours."""
    texts = [f"{n} {make_text(40, seed=n)}".replace("\n", " ") for n in range(500)]
    (tmp_path / "corpus").mkdir()
    for copy in range(3):
        order = np.random.default_rng(copy).permutation(len(texts))
        (tmp_path / "corpus" / f"{copy}.txt").write_text("\n".join(texts[n] for n in order))
    source = {"path": str(tmp_path / "corpus"), "document": "line"}
    cache = hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")
    train, validation = documents_of(cache, "train", 0.2), documents_of(cache, "validation", 0.2)
    assert not set(train) & set(validation)
    assert len(validation) == 3 * len(set(validation)) > 100


def test_a_document_is_drawn_by_its_own_tokens_alone(tmp_path: Path) -> None:
    texts = [make_text(1 + n % 90, seed=n).replace("\n", " ") for n in range(400)]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    source = {"path": str(tmp_path / "a.txt"), "document": "line"}
    cache = hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")
    whole = [Split(cache, "train", 0.2).ranges(segment) for segment in range(len(cache.segments))]
    with use_scale(replace(current_scale(), hashed_tokens=7, drawn_documents=3)):
        for segment, expected in enumerate(whole):
            assert np.array_equal(Split(cache, "train", 0.2).ranges(segment), expected)


def test_documents_of_the_same_words_in_another_order_are_drawn_apart(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "a.txt").write_text("\n".join("".join(rng.permutation(list("abcdefghij"))) for _ in range(2000)))
    source = {"path": str(tmp_path / "a.txt"), "document": "line"}
    cache = hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")
    assert share_of(cache, "validation", 0.1) == pytest.approx(0.1, rel=0.25)


@pytest.mark.parametrize("short_piece", [0, 1 << 30])
@pytest.mark.parametrize("length", [1, 7, 40])
@pytest.mark.parametrize("part", ["train", "validation"])
def test_windows_lie_end_to_end_over_the_documents_of_a_part(
    tmp_path: Path, part: Any, length: int, short_piece: int
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(make_text(1 + n % 60, seed=n).replace("\n", " ") for n in range(500)))
    source = {"path": str(tmp_path / "a.txt"), "document": "line"}
    cache = hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")
    split = Split(cache, part, 0.3)
    expected = []
    for segment in range(len(cache.segments)):
        tokens = np.concatenate(list(cache.tokens(segment, 0, 1 << 40)))
        expected += [tokens[start:stop] for start, stop in zip(*split.ranges(segment), strict=True)]
    line = np.concatenate(expected)
    scale = replace(current_scale(), short_piece_tokens=short_piece, seam_tokens=100)
    with use_scale(scale), hr.Loader(cache, 3, length, split=part, validation_fraction=0.3, shuffle=False) as loader:
        rows = np.concatenate(
            [np.append(batch.inputs, batch.targets[:, -1:], 1) for batch, _ in zip(loader, range(9), strict=False)]
        )
    for number, row in enumerate(rows):
        assert np.array_equal(row, line[number * length : (number + 1) * length + 1])


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


def test_a_text_and_json_lines_in_one_folder_are_each_divided_by_their_own_documents(tmp_path: Path) -> None:
    """A group used to be divided as its first file's kind said: by its tail, or by whole documents."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("a" * 3000)
    lines = [f"{number:03} " + "b" * 40 for number in range(1000)]
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    cache = hr.prepare(folder, tokenizer="byte", out=tmp_path / "cache")
    end, parts = cache.tokenizer.end_of_text_id, {}
    for part in ("train", "validation"):
        documents = np.split(stream_of(cache, part, 0.2), np.flatnonzero(stream_of(cache, part, 0.2) == end) + 1)
        parts[part] = [bytes(document[document != end].astype(np.uint8)).decode() for document in documents]
    # The text is cut inside, so no end-of-text stands between what is left of it and the next document.
    json_lines = {part: {text.lstrip("a") for text in texts} & set(lines) for part, texts in parts.items()}
    assert json_lines["train"] | json_lines["validation"] == set(lines), "no JSON line is cut"
    assert json_lines["validation"], "some of them are validated on"
    assert any(text and set(text) == {"a"} for text in parts["validation"]), "the tail of the text too"
