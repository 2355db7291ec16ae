"""Duplicates: which document is dropped is a pure function of the corpus, whatever the number of workers."""

from __future__ import annotations

import json
import os
import random
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.activity import ignore
from headrace.data.corpus.segments import divide_corpus
from headrace.data.corpus.sources import as_sources
from headrace.data.selection.duplicates import mark_duplicates
from headrace.data.selection.hashing import document_hashes
from headrace.data.selection.minhash import band_keys, bands_for, chance_of_finding
from headrace.data.selection.options import Selection
from headrace.data.selection.reasons import DUPLICATE, KEPT, NEAR_DUPLICATE
from headrace.data.selection.records import DocumentRecord, GatheredRecord, Slab, pack_facts, read_record, write_record
from headrace.data.selection.text import select_text
from headrace.locks import Scratch
from tests.conftest import make_text


def texts(cache: hr.Cache) -> list[str]:
    """The documents of a cache, in the order of the corpus."""
    found = []
    for segment in range(len(cache.segments)):
        ids = np.concatenate([*cache.tokens(segment, 0, 1 << 30), np.zeros(0, cache.dtype)])
        start = 0
        for end in cache.document_ends(segment).tolist():
            found.append(cache.tokenizer.decode(ids[start : end - 1]))
            start = end
    return found


def first_of_each(documents: list[str]) -> list[str]:
    return list(dict.fromkeys(documents))


def write_lines(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def repeated_corpus(folder: Path, num_files: int = 6) -> list[str]:
    """Files of several segments each with documents that repeat others of any file; returns all documents in order."""
    folder.mkdir()
    rng = random.Random(1)
    known = [make_text(rng.randint(20, 300), seed=seed) for seed in range(150)]
    documents: list[str] = []
    for number in range(num_files):
        mine = [rng.choice(known) + ("" if rng.random() < 0.7 else f" {rng.random()}") for _ in range(60)]
        write_lines(folder / f"{number}.jsonl", mine)
        documents += mine
    return documents


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_first_of_equal_documents_is_kept(tmp_path: Path, num_workers: int) -> None:
    documents = repeated_corpus(tmp_path / "corpus")
    cache = hr.prepare(tmp_path / "corpus", "byte", tmp_path / "cache", deduplicate="exact", num_workers=num_workers)
    assert len(cache.segments) > 6
    assert texts(cache) == first_of_each(documents)
    repeated = len(documents) - len(first_of_each(documents))
    repeated_bytes = sum(len(text.encode()) for text in documents) - sum(
        len(text.encode()) for text in first_of_each(documents)
    )
    assert cache.dropped == {"duplicate": {"documents": repeated, "bytes": repeated_bytes}}
    assert cache.duplicates == {"documents": repeated, "bytes": repeated_bytes}


@pytest.mark.usefixtures("small_scale")
def test_duplicates_are_counted_even_if_they_are_kept(tmp_path: Path) -> None:
    documents = repeated_corpus(tmp_path / "corpus")
    cache = hr.prepare(tmp_path / "corpus", "byte", tmp_path / "cache")
    assert texts(cache) == documents
    assert cache.dropped == {}
    assert cache.duplicates is not None
    assert cache.duplicates["documents"] == len(documents) - len(first_of_each(documents))
    assert hr.prepare(tmp_path / "corpus", "byte", tmp_path / "cache").duplicates == cache.duplicates


@pytest.mark.usefixtures("small_scale")
def test_a_loader_serves_what_prepare_keeps_and_its_ledger_says_what_not(tmp_path: Path) -> None:
    repeated_corpus(tmp_path / "corpus")
    cache = hr.prepare(tmp_path / "corpus", "byte", tmp_path / "prepared", deduplicate="near")
    options = {"batch_size": 4, "sequence_length": 32, "tokenizer": "byte"}
    with (
        hr.Loader(cache, **options) as prepared,
        hr.Loader(
            tmp_path / "corpus", cache_dir=tmp_path / "fresh", deduplicate="near", num_workers=3, **options
        ) as fresh,
    ):
        for _ in range(20):
            assert np.array_equal(next(prepared).inputs, next(fresh).inputs)
        state = fresh.state()
        expected = [next(fresh).inputs for _ in range(5)]
        (ledger,) = fresh.ledger()
        assert ledger.left_out == cache.dropped
        assert set(ledger.left_out) == {"duplicate", "near_duplicate"}
        assert ledger.trained + ledger.carried + ledger.dropped == ledger.tokens
    with hr.Loader(cache, num_workers=1, **options) as again:
        again.restore(state)
        assert all(np.array_equal(next(again).inputs, batch) for batch in expected)


@pytest.mark.usefixtures("small_scale")
def test_a_killed_or_grown_corpus_ends_as_if_made_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    documents = repeated_corpus(folder)
    hr.prepare(folder, "byte", tmp_path / "grown", deduplicate="exact")
    extra = [documents[3], "new and nowhere else", documents[-1]]
    write_lines(folder / "0a.jsonl", extra)  # sorted into the middle: later documents may now repeat it
    grown = hr.prepare(folder, "byte", tmp_path / "grown", deduplicate="exact")
    fresh = hr.prepare(folder, "byte", tmp_path / "fresh", deduplicate="exact")
    assert texts(grown) == texts(fresh)
    assert grown.dropped == fresh.dropped
    assert [s.fingerprint for s in grown.segments] == [s.fingerprint for s in fresh.segments]


@pytest.mark.usefixtures("small_scale")
def test_the_option_is_part_of_the_cache(tmp_path: Path) -> None:
    repeated_corpus(tmp_path / "corpus")
    everything = hr.prepare(tmp_path / "corpus", "byte", tmp_path / "cache").num_documents
    fewer = hr.prepare(tmp_path / "corpus", "byte", tmp_path / "cache", deduplicate="exact").num_documents
    assert fewer < everything
    assert hr.prepare(tmp_path / "corpus", "byte", tmp_path / "cache").num_documents == everything
    folders = {
        hr.prepare(tmp_path / "corpus", "byte", **options).path
        for options in (
            {},
            {"deduplicate": "exact"},
            {"deduplicate": "near"},
            {"deduplicate": "near", "near_threshold": 0.9},
        )
    }
    assert len(folders) == 4


@pytest.mark.usefixtures("small_scale")
def test_a_repeated_document_across_segments_is_dropped_whole(tmp_path: Path) -> None:
    book = make_text(30_000, seed=7)
    for name, text in (("a", book), ("b", "short"), ("c", book), ("d", book[:20_000])):
        (tmp_path / f"{name}.txt").write_text(text)
    cache = hr.prepare(tmp_path / "*.txt", "byte", tmp_path / "cache", deduplicate="exact")
    assert cache.dropped["duplicate"] == {"documents": 1, "bytes": len(book.encode())}
    assert cache.num_documents == 3
    assert cache.num_tokens == len((book + "short" + book[:20_000]).encode()) + 3


@pytest.mark.usefixtures("small_scale")
def test_duplicates_in_a_compressed_file(tmp_path: Path) -> None:
    import gzip

    documents = [make_text(300, seed=number % 40) for number in range(120)]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps({"text": text}) + "\n" for text in documents))
    cache = hr.prepare(tmp_path / "a.jsonl.gz", "byte", tmp_path / "cache", deduplicate="exact", num_workers=2)
    assert texts(cache) == first_of_each(documents)


def test_damaged_records_are_made_anew(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["one", "two", "one"])
    hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", deduplicate="exact")
    for path in (tmp_path / "cache" / "documents").iterdir():
        path.write_bytes(b"damaged")
    with pytest.raises(hr.HeadraceError, match="Run again"):
        hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", deduplicate="exact")
    assert hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", deduplicate="exact").num_documents == 2


def test_a_cache_from_before_does_not_know_its_duplicates(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    write_lines(tmp_path / "corpus" / "a.jsonl", ["one", "two", "one"])
    with open(tmp_path / "corpus" / "large.txt", "w") as file:  # a segment of its own
        file.write(make_text(9 << 20))
    assert hr.prepare(tmp_path / "corpus", "byte", tmp_path / "cache").duplicates == {"documents": 1, "bytes": 3}
    shutil.rmtree(tmp_path / "cache" / "documents")
    write_lines(tmp_path / "corpus" / "a.jsonl", ["one", "two", "one", "three"])
    assert hr.prepare(tmp_path / "corpus", "byte", tmp_path / "cache").duplicates is None


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted by way of /proc")
@pytest.mark.parametrize("deduplicate", ["none", "exact"])
@pytest.mark.usefixtures("small_scale")
def test_counting_duplicates_holds_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deduplicate: Any
) -> None:
    write_lines(tmp_path / "a.jsonl", [make_text(300, seed=number % 150) for number in range(300)])
    before, most = len(os.listdir("/proc/self/fd")), 0

    def counted(*arguments: Any) -> DocumentRecord | None:
        nonlocal most
        record = read_record(*arguments)
        most = max(most, len(os.listdir("/proc/self/fd")))
        return record

    monkeypatch.setattr("headrace.data.selection.folder.read_record", counted)
    cache = hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", deduplicate=deduplicate, num_workers=1)
    assert len(cache.segments) > 20
    assert cache.duplicates is not None
    assert cache.duplicates["documents"] == 150
    assert before < most < before + 12


@given(st.lists(st.binary(max_size=40), max_size=60))
@settings(deadline=None, max_examples=60)
def test_hashes_tell_documents_apart(documents: list[bytes]) -> None:
    hashes = document_hashes(documents)
    by_text = {text: int(value) for text, value in zip(documents, hashes, strict=True)}
    assert [by_text[text] for text in documents] == hashes.tolist()
    assert len(set(by_text.values())) == len(by_text)
    assert [int(document_hashes([text])[0]) for text in documents] == hashes.tolist()


def test_hashes_depend_on_the_order_of_words() -> None:
    words = [b"%08d" % number for number in range(4)]
    a, b, c, d = words
    assert (
        len(set(document_hashes([a + b + a + c + a, a + c + a + b + a, a + b, b + a, a, a + b"\0", d]).tolist())) == 7
    )


@given(
    st.lists(st.lists(st.integers(0, 8), max_size=6), min_size=1, max_size=8),
    st.integers(1, 5),
)
@settings(deadline=None, max_examples=100)
def test_marks_equal_the_definition_however_keys_are_divided(segments: list[list[int]], most_keys: int) -> None:
    spread = document_hashes([b"%d" % number for number in range(9)])
    records = [
        DocumentRecord([len(keys)], pack_facts([1] * len(keys), [KEPT] * len(keys), False, False), spread[keys][None])
        if keys
        else DocumentRecord([0], np.zeros(0, np.uint64), np.zeros((1, 0), np.uint64))
        for keys in segments
    ]
    marks = np.zeros(sum(map(len, segments)), np.uint8)
    mark_duplicates(records.__getitem__, [len(keys) for keys in segments], marks, 1, most_keys)
    flat = [key for keys in segments for key in keys]
    assert marks.tolist() == [DUPLICATE if key in flat[:place] else KEPT for place, key in enumerate(flat)]


def alike(num_words: int, change: float, rng: random.Random) -> tuple[bytes, bytes, float]:
    """Two documents, the second with some words changed, and their likeness by definition."""
    words = [f"w{rng.randrange(5000)}" for _ in range(num_words)]
    other = [f"w{rng.randrange(5000)}" if rng.random() < change else word for word in words]
    sets = [{tuple(text[i : i + 5]) for i in range(num_words - 4)} for text in (words, other)]
    return " ".join(words).encode(), " ".join(other).encode(), len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("num_words", [80, 600])
@pytest.mark.parametrize("change", [0.01, 0.03, 0.08])
def test_near_duplicates_are_found_as_often_as_stated(num_words: int, change: float) -> None:
    rng = random.Random(num_words + int(1000 * change))
    found, expected = 0, 0.0
    for _ in range(150):
        one, other, likeness = alike(num_words, change, rng)
        keys = band_keys([one, other], 0.8)
        found += bool((keys[:, 0] == keys[:, 1]).any())
        expected += chance_of_finding(likeness, *bands_for(0.8))
    assert abs(found - expected) / 150 < 0.15


def test_near_keys_look_at_words_alone_and_at_each_document_alone() -> None:
    text = make_text(5000, seed=3).encode()
    plain = b"the mill wheel turns and the old stone grinds new grain to white flour"
    noisy = b"The  mill wheel turns, and the old stone\ngrinds NEW grain -- to white flour!"
    together = band_keys([plain, noisy, text, b"too few words"], 0.8)
    assert (together[:, 0] == together[:, 1]).all()
    assert (together[:, 3] == 0).all()
    assert np.array_equal(together[:, 2], band_keys([text], 0.8)[:, 0])
    large = text * 200  # a MB: cut into pieces inside
    assert (band_keys([large, large], 0.8)[:, 0] == band_keys([b"x", large], 0.8)[:, 1]).all()


def test_near_duplicates_are_dropped_with_a_reason_of_their_own(tmp_path: Path) -> None:
    rng = random.Random(5)
    documents = [" ".join(f"w{rng.randrange(5000)}" for _ in range(400)) for _ in range(20)]
    changed = [text.replace(" ", " changed ", 1) for text in documents[:5]]
    write_lines(tmp_path / "a.jsonl", [*documents, *changed, documents[0]])
    cache = hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", deduplicate="near")
    assert texts(cache) == documents
    assert {reason: counts["documents"] for reason, counts in cache.dropped.items()} == {
        "duplicate": 1,
        "near_duplicate": 5,
    }
    assert NEAR_DUPLICATE != DUPLICATE


def test_a_source_of_a_mixture_that_only_repeats_another_is_named(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_lines(tmp_path / f"{name}.jsonl", [f"document number {number}" for number in range(30)])
    sources = [{"path": str(tmp_path / f"{name}.jsonl"), "name": name, "weight": 1} for name in ("first", "second")]
    with (
        hr.Loader(sources, 4, 16, tokenizer="byte", cache_dir=tmp_path / "cache", deduplicate="exact") as loader,
        pytest.raises(hr.HeadraceError, match=r"the source 'second' \(0 tokens; documents left out: 30 as duplicate\)"),
    ):
        next(loader)


def test_keys_of_tiny_documents_take_little_memory(tmp_path: Path) -> None:
    count = 120_000
    (tmp_path / "a.txt").write_text("".join(f"{number:x}\n" for number in range(count)))
    sources = as_sources(hr.Source(path=str(tmp_path / "a.txt"), document="line"))
    segments = divide_corpus(sources)
    tracemalloc.start()
    try:
        text = select_text(sources, segments, Selection("near"), tmp_path, lambda: Scratch(tmp_path), ignore)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    record = text.records.read(0)
    assert record is not None
    assert len(record.facts) == count
    assert peak < 21 * 8 * count + (32 << 20)  # about one copy of keys that are all 0, where five were held before


@pytest.mark.parametrize("sizes", [[], [0], [3], [2, 0, 5]])
@pytest.mark.parametrize("threshold", [None, 0.8])
def test_a_record_is_read_as_it_was_gathered(tmp_path: Path, sizes: list[int], threshold: float | None) -> None:
    slabs, keys, facts = [], [], []
    for size in sizes:
        documents = [b"word " * number for number in range(3, 3 + size)]  # some with too few words
        facts.append(pack_facts([len(text) for text in documents], [KEPT] * size, False, False))
        keys.append(document_hashes(documents)[None])
        if threshold is not None:
            keys[-1] = np.concatenate([keys[-1], band_keys(documents, threshold)])
        slabs.append(Slab.of(facts[-1], keys[-1]))
    num_keys = 1 if threshold is None else 1 + bands_for(threshold)[0]
    write_record(tmp_path / "record", GatheredRecord(sizes, slabs, num_keys), tmp_path / "temporary")
    record = read_record(tmp_path / "record", num_keys)
    assert record is not None
    assert record.parts == sizes
    assert np.array_equal(record.facts, np.concatenate([np.zeros(0, np.uint64), *facts]))
    assert np.array_equal(record.keys, np.concatenate([np.zeros((num_keys, 0), np.uint64), *keys], axis=1))


@pytest.mark.parametrize("threshold", [0, 0.29, 1.01, float("nan"), True, "high"])
def test_a_threshold_outside_its_range_is_refused(tmp_path: Path, threshold: object) -> None:
    write_lines(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(hr.HeadraceError, match="near_threshold"):
        hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", deduplicate="near", near_threshold=threshold)
    assert not (tmp_path / "cache").exists()


def test_an_unknown_way_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(hr.HeadraceError, match="none, exact or near"):
        hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", deduplicate="fuzzy")
