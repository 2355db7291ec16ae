from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.data.cache.build import Builder, Progress
from headrace.data.cache.open import open_or_create
from headrace.data.config import DataConfig
from headrace.data.corpus.segments import share_of_segments
from headrace.data.corpus.sources import as_sources
from headrace.data.prepare import open_cache, prepare_share
from headrace.errors import CacheError
from headrace.locks import Scratch
from tests.conftest import make_text

pytestmark = pytest.mark.usefixtures("small_scale")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def prepare(paths: list[Path], out: Path, tokenizer: str = "bpe:500") -> tuple[hr.Cache, Progress]:
    """A build, and what it had to do."""
    seen: list[Progress] = []
    cache = hr.prepare(paths, tokenizer=tokenizer, out=out, on_progress=seen.append)
    return cache, seen[-1]


def folder_of_files(root: Path, count: int = 60) -> Path:
    root.mkdir()
    for number in range(count):
        (root / f"{number:03}.txt").write_text(make_text(300, seed=number))
    return root


def test_a_second_build_does_nothing(tmp_path: Path) -> None:
    root = folder_of_files(tmp_path / "corpus")
    _, first = prepare([root], tmp_path / "cache")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*")}
    _, second = prepare([root], tmp_path / "cache")
    assert first.tokenised_files == 60
    assert second.tokenised_files == 0
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*")} == before


@pytest.mark.parametrize("name", ["000a.txt", "030a.txt", "zzz.txt"])
def test_one_more_file_is_one_file_of_work(tmp_path: Path, name: str) -> None:
    root = folder_of_files(tmp_path / "corpus")
    prepare([root], tmp_path / "cache")
    (root / name).write_text(make_text(300, seed=999))
    cache, progress = prepare([root], tmp_path / "cache")
    assert progress.tokenised_files == 1
    clean = hr.prepare([root], tokenizer=str(tmp_path / "cache" / "tokenizer.json"), out=tmp_path / "clean")
    assert cache.num_tokens == clean.num_tokens
    assert cache.unique_shards() == clean.unique_shards()
    kept = set(cache.unique_shards()) | set(cache.retired)
    assert {file.stem for file in cache.shards.path.iterdir()} == kept  # the version before, once more
    (root / name).unlink()
    cache, _ = prepare([root], tmp_path / "cache")
    (root / name).write_text("short")
    cache, _ = prepare([root], tmp_path / "cache")
    assert {file.stem for file in cache.shards.path.iterdir()} == set(cache.unique_shards()) | set(cache.retired)


def test_changed_and_removed_files(tmp_path: Path) -> None:
    root = folder_of_files(tmp_path / "corpus")
    old, _ = prepare([root], tmp_path / "cache")
    (root / "007.txt").write_text("changed")
    (root / "008.txt").unlink()
    new, progress = prepare([root], tmp_path / "cache")
    assert progress.tokenised_files == 1
    assert new.num_documents == old.num_documents - 1
    assert not new.verify()


def test_a_change_that_hides_behind_the_old_times_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("the mill wheel")
    status = file.stat()
    before, _ = prepare([file], tmp_path / "cache", "byte")
    file.write_text("THE MILL WHEEL")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    after, _ = prepare([file], tmp_path / "cache", "byte")
    assert bytes(next(after.tokens(0, 0, 14)).astype(np.uint8)) == b"THE MILL WHEEL"
    assert before.num_tokens == after.num_tokens


def test_a_touched_file_is_read_but_not_tokenised(tmp_path: Path) -> None:
    root = folder_of_files(tmp_path / "corpus")
    prepare([root], tmp_path / "cache")
    for file in root.iterdir():
        os.utime(file)
    _, progress = prepare([root], tmp_path / "cache")
    assert progress.tokenised_files == 0


def test_a_large_file_that_grew_keeps_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    text = make_text(60_000)
    file.write_text(text)
    prepare([file], tmp_path / "cache")
    file.write_text(text + make_text(4_000, seed=5))
    _, progress = prepare([file], tmp_path / "cache")
    assert progress.tokenised_bytes < 16_000


def test_a_moved_corpus_has_the_same_order(tmp_path: Path) -> None:
    first = folder_of_files(tmp_path / "here")
    one = hr.prepare([first], tokenizer="byte", out=tmp_path / "one")
    first.rename(tmp_path / "elsewhere")
    two = hr.prepare([tmp_path / "elsewhere"], tokenizer="byte", out=tmp_path / "two")
    assert one.corpus_hash == two.corpus_hash
    loaders = [hr.Loader(cache, batch_size=4, sequence_length=32, prefetch_batches=0) for cache in (one, two)]
    for _ in range(50):
        assert np.array_equal(next(loaders[0]).inputs, next(loaders[1]).inputs)


def test_an_interrupted_build_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(make_text(100_000))
    cache = open_or_create(as_sources(file), "bpe:500", tmp_path / "cache")
    with Builder(cache, num_workers=1) as builder:
        cache.require([3])
    done = builder.progress.tokenised_bytes
    assert 0 < done < 80_000
    with pytest.raises(CacheError, match="not finished"):
        hr.Cache.open(tmp_path / "cache")
    _, progress = prepare([file], tmp_path / "cache")
    assert progress.tokenised_bytes == 100_000 - done or progress.tokenised_bytes < 100_100 - done
    clean = hr.prepare([file], tokenizer="bpe:500", out=tmp_path / "clean")
    assert not clean.verify()
    assert contents(tmp_path / "cache") == contents(tmp_path / "clean")


def test_what_unfinished_builds_made_goes_like_an_old_version(tmp_path: Path) -> None:
    file, out = tmp_path / "a.txt", tmp_path / "cache"

    def shards() -> set[str]:
        return {path.stem for path in (out / "shards").iterdir()}

    for seed in (1, 2):
        file.write_text(make_text(100_000, seed=seed))
        cache = open_or_create(as_sources(file), "byte", out)
        with Builder(cache, num_workers=1):
            cache.require([3])
    unfinished = shards()
    file.write_text(make_text(100_000, seed=3))
    cache, _ = prepare([file], out, "byte")
    assert len(unfinished) >= 2 and set(cache.retired) == unfinished  # somebody may read them still
    file.write_text(make_text(100_000, seed=4))
    cache, _ = prepare([file], out, "byte")
    assert shards() == set(cache.unique_shards()) | set(cache.retired)
    assert not unfinished & shards()


def build_in_child(source: Path, out: Path) -> None:
    hr.prepare([source], tokenizer="bpe:500", out=out)


def test_two_builders_at_once(tmp_path: Path) -> None:
    """Two processes and two threads on one folder: all succeed, and the result is that of one."""
    file = tmp_path / "a.txt"
    file.write_text(make_text(200_000))
    hr.prepare([file], tokenizer="bpe:500", out=tmp_path / "clean")
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=build_in_child, args=(file, tmp_path / "cache")) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    cache = hr.Cache.open(tmp_path / "cache")
    assert not cache.verify()
    assert cache.num_tokens == hr.Cache.open(tmp_path / "clean").num_tokens
    assert not list(tmp_path.glob("cache/tmp/*"))


@pytest.mark.parametrize("name", ["documents", "tmp", "shards", "validation"])
def test_folders_of_somebody_else_are_not_taken_for_those_of_a_cache(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    mine = tmp_path / name / "mine.txt"
    mine.write_text(make_text(10_000))
    with pytest.raises(CacheError, match="something other than a token cache"):
        hr.prepare(mine, tokenizer="byte", out=tmp_path)
    assert mine.exists()


def test_a_home_folder_is_found_by_its_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text(make_text(10_000))
    assert hr.prepare("~/a.txt", tokenizer="byte", out="~/cache").path == tmp_path / "cache"
    assert DataConfig(cache_dir="~/cache").cache_dir == str(tmp_path / "cache")
    with hr.Loader("~/cache", 2, 8) as loader:
        assert loader.cache.path == tmp_path / "cache"


def test_leftovers_of_a_dead_builder_are_swept(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(make_text(10_000))
    temporary = tmp_path / "cache" / "tmp"
    for name in ("0123456789abcdef", "fedcba9876543210"):
        (temporary / name).mkdir(parents=True)
        (temporary / name / "tokens").write_bytes(b"of a builder that was killed")
    (temporary / "0123456789abcdef.lock").touch()
    with Scratch(temporary) as living:
        (living / "tokens").write_bytes(b"of a builder at work")
        prepare([file], tmp_path / "cache", "byte")
        assert (living / "tokens").read_bytes() == b"of a builder at work"
        assert {path.stem for path in temporary.iterdir()} == {living.name}
    assert not list(temporary.iterdir())


def test_equal_text_is_stored_once(tmp_path: Path) -> None:
    text = make_text(8_000)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(text)
    cache = hr.prepare([tmp_path / "a.txt", tmp_path / "b.txt"], tokenizer="byte", out=tmp_path / "cache")
    assert len(cache.unique_shards()) < sum(len(cache.entry(i).shards) for i in range(len(cache.segments)))


def test_a_waiting_reader_is_told_of_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "fine"}\n' * 2000 + "not json\n")
    cache = open_or_create(as_sources(file), "byte", tmp_path / "cache")
    failures: list[str] = []

    def wait() -> None:
        try:
            cache.require([len(cache.segments) - 1])
        except hr.HeadraceError as problem:
            failures.append(str(problem))

    waiting = threading.Thread(target=wait)
    waiting.start()
    with Builder(cache, num_workers=2):
        waiting.join(timeout=30)
    assert "a.jsonl:2001: not valid JSON" in failures[0]


def documents_of(cache: hr.Cache) -> list[str]:
    """The documents of a byte cache, in corpus order."""
    tokens = np.concatenate([np.concatenate(list(cache.tokens(i, 0, 1 << 40))) for i in range(len(cache.segments))])
    pieces = np.split(tokens, np.flatnonzero(tokens == cache.tokenizer.end_of_text_id) + 1)
    return [bytes(piece[piece < 256].astype(np.uint8)).decode() for piece in pieces if len(piece)]


def test_reuse_knows_how_a_file_was_read(tmp_path: Path) -> None:
    """The same small files under two ways of reading must not lend each other tokens."""
    root = tmp_path / "corpus"
    root.mkdir()
    for number in range(5):
        (root / f"{number}.jsonl").write_text(json.dumps({"text": f"text {number}", "title": f"title {number}"}))
    sources = [{"path": str(root), "text_field": name} for name in ("text", "title")]
    hr.prepare(sources, tokenizer="byte", out=tmp_path / "cache")
    (root / "9.jsonl").write_text(json.dumps({"text": "text 9", "title": "title 9"}))
    again = hr.prepare(sources, tokenizer="byte", out=tmp_path / "cache")
    numbers = [0, 1, 2, 3, 4, 9]
    assert documents_of(again) == [f"text {n}" for n in numbers] + [f"title {n}" for n in numbers]


@pytest.mark.parametrize("size", [500, 9000])
def test_a_renamed_file_of_another_format_is_read_anew(tmp_path: Path, size: int) -> None:
    lines = "\n".join(json.dumps({"text": f"document {n}"}) for n in range(size // 25))
    (tmp_path / "a.txt").write_text(lines)
    source = {"path": str(tmp_path / "a.*"), "document": "line"}
    assert documents_of(hr.prepare([source], "byte", tmp_path / "cache"))[0].startswith('{"text"')
    (tmp_path / "a.txt").rename(tmp_path / "a.jsonl")
    found = documents_of(hr.prepare([source], "byte", tmp_path / "cache"))
    assert found == [f"document {n}" for n in range(size // 25)]


def test_one_compressed_file_read_in_two_ways_at_once(tmp_path: Path) -> None:
    lines = [f"line {n} of the mill" for n in range(3000)]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 0))
    sources = [{"path": str(tmp_path / "a.txt.gz"), "document": kind, "weight": 1} for kind in ("line", "file")]
    for seed in range(3):
        with hr.Loader(sources, 2, 32, seed, tokenizer="byte", cache_dir=tmp_path / str(seed)) as loader:
            next(loader)
            assert loader.cache.num_documents == 3001


def test_starts_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    failures: list[BaseException] = []

    def start(number: int) -> None:
        try:
            for turn in range(15):
                source = {"path": str(tmp_path / "a.txt"), "name": f"{number}-{turn}"}  # another manifest each time
                hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")
        except BaseException as problem:
            failures.append(problem)

    starts = [threading.Thread(target=start, args=(number,)) for number in range(4)]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join()
    assert not failures
    assert not hr.Cache.open(tmp_path / "cache").verify()


def test_a_manifest_that_cannot_be_written_is_not_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    save = hr.Cache.save

    def fail_at_the_end(self: hr.Cache, name: str) -> None:
        if name == "manifest.json":
            raise CacheError("the disk is full")
        save(self, name)

    monkeypatch.setattr(hr.Cache, "save", fail_at_the_end)
    with pytest.raises(CacheError, match="the disk is full"):
        hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    loader = hr.Loader(tmp_path / "a.txt", 2, 32, tokenizer="byte", cache_dir=tmp_path / "raw")
    for _ in range(loader.steps_per_epoch):
        next(loader)
    with pytest.raises(CacheError, match="the disk is full"):
        loader.close()
    loader.close()
    monkeypatch.undo()
    assert not hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache").verify()


def test_a_loader_outlives_one_new_version_of_its_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(60_000))
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    with hr.Loader(cache, 2, 32, prefetch_batches=0) as loader:
        next(loader)
        (tmp_path / "a.txt").write_text(make_text(60_000, seed=1))
        hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
        seen = sum(next(loader).num_tokens for _ in range(loader.steps_per_epoch))
        assert seen == loader.steps_per_epoch * 2 * 32, "the whole epoch is still there"


def test_shares_are_built_apart_and_found_together(tmp_path: Path) -> None:
    """Every segment belongs to one share; the build of the whole then has nothing to tokenise, and is the usual one."""
    folder = folder_of_files(tmp_path / "corpus")
    (folder / "large.txt").write_text(make_text(60_000, seed=1))
    (folder / "packed.txt.gz").write_bytes(gzip.compress(make_text(40_000, seed=2).encode()))
    alone, done = prepare([folder], tmp_path / "alone")
    shares = [share_of_segments(alone.segments, number, 3) for number in range(3)]
    assert sorted(index for share in shares for index in share) == list(range(len(alone.segments)))
    streams = {index for index, segment in enumerate(alone.segments) if segment.kind == "stream"}
    assert len(streams) > 1 and sum(bool(share & streams) for share in shares) == 1
    threads = [
        threading.Thread(target=prepare_share, args=([folder], "bpe:500", tmp_path / "together", number, 3))
        for number in range(3)
    ]
    open_cache([folder], "bpe:500", tmp_path / "together")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(CacheError, match="not finished"):
        hr.Cache.open(tmp_path / "together")
    together, progress = prepare([folder], tmp_path / "together")
    assert done.tokenised_bytes > 0
    assert progress.tokenised_bytes == 0
    assert contents(together.path) == contents(alone.path)
