from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.data.build import Builder, Progress, plan_cache
from headrace.data.sources import as_sources
from headrace.errors import CacheError
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
    shards = {key: data for key, data in contents(tmp_path / "cache").items() if key.startswith("shards")}
    assert shards == {k: d for k, d in contents(tmp_path / "clean").items() if k.startswith("shards")}


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
    cache = plan_cache(as_sources(file), "bpe:500", tmp_path / "cache")
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
    assert not (tmp_path / "cache" / "tmp").exists()


def test_leftovers_of_a_dead_builder_are_swept(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(make_text(10_000))
    cache = plan_cache(as_sources(file), "byte", tmp_path / "cache")
    host = cache.shards.temporary("x", "").name.split("+")[0]
    dead = tmp_path / "cache" / "tmp" / f"{host}+999999999+1.00~1~x.tokens"
    dead.write_bytes(b"rubbish")
    cache, _ = prepare([file], tmp_path / "cache", "byte")
    assert not (tmp_path / "cache" / "tmp").exists()


def test_equal_text_is_stored_once(tmp_path: Path) -> None:
    text = make_text(8_000)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(text)
    cache = hr.prepare([tmp_path / "a.txt", tmp_path / "b.txt"], tokenizer="byte", out=tmp_path / "cache")
    assert len(cache.unique_shards()) < sum(len(cache.entry(i).shards) for i in range(len(cache.segments)))


def test_a_waiting_reader_is_told_of_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "fine"}\n' * 2000 + "not json\n")
    cache = plan_cache(as_sources(file), "byte", tmp_path / "cache")
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
