"""Which files make up a corpus: what is found, what is left out and counted, and what is one source."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.data.corpus.discovery import iterate_files
from headrace.data.corpus.segments import divide_corpus
from headrace.data.corpus.sources import Source, as_sources

Command = Callable[..., tuple[int, str, str]]


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"the text of {name}\n" * 20)


def found(path: Path | str) -> tuple[list[str], dict[str, int]]:
    skipped: Counter[str] = Counter()
    return [file.name for file in iterate_files(Source(path=str(path)), skipped)], dict(skipped)


def test_empty_files_are_left_out_and_counted(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b/c.py")
    (tmp_path / "b" / "__init__.py").touch()
    paths = sorted(tmp_path.rglob("*.py"))
    cache = hr.prepare(paths, tokenizer="byte", out=tmp_path / "cache")
    assert cache.num_documents == 2
    assert cache.skipped == {"empty file(s)": 1}


def test_paths_given_together_are_one_source(tmp_path: Path, command: Command) -> None:
    names = [f"{n % 7}/{n}.txt" for n in range(40)]
    write(tmp_path, *names)
    paths = [str(tmp_path / name) for name in names]
    cache = hr.prepare(paths, tokenizer="byte", out=tmp_path / "cache")
    assert len(cache.sources) == len(cache.segments) == 1
    assert cache.num_documents == 40
    assert [part.name for part in cache.parts(0)] == names
    with hr.Loader(paths, 2, 16, tokenizer="byte", cache_dir=tmp_path / "other") as loader:
        assert len(loader.cache.sources) == 1
    code, _, _ = command("prepare", *paths, "--tokenizer", "byte", "--out", tmp_path / "third")
    assert code == 0
    assert len(hr.Cache.open(tmp_path / "third").sources) == 1


def test_paths_with_weights_are_sources_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "b.txt")
    paths = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    with hr.Loader(paths, 2, 16, tokenizer="byte", weights=[0.5, 0.5], cache_dir=tmp_path / "cache") as loader:
        assert len(loader.cache.sources) == 2


def test_globs_given_together_are_named_within_the_folder_that_they_share(tmp_path: Path) -> None:
    write(tmp_path, "long/a.txt", "b/c.txt", "b/d.md")
    source = as_sources([str(tmp_path / "*" / "*.txt"), str(tmp_path / "*" / "*.md")])[0]
    assert [file.name for file in iterate_files(source)] == ["b/c.txt", "long/a.txt", "b/d.md"]


def test_a_pattern_that_finds_a_file_in_two_ways_names_it_once(tmp_path: Path) -> None:
    (tmp_path / "text" / "text").mkdir(parents=True)
    (tmp_path / "text" / "text" / "a.txt").write_text("once")
    segments = divide_corpus(as_sources([f"{tmp_path}/**/text/**/*.txt"]))
    assert sum(segment.nbytes for segment in segments) == len("once")


def test_files_of_unknown_kinds_in_a_folder_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "b.png", "c.png", "LICENSE")
    assert found(tmp_path) == (["a.txt"], {"file(s) with the suffix .png": 2, "file(s) without a suffix": 1})


def test_a_cache_inside_the_corpus_is_left_out(tmp_path: Path, command: Command) -> None:
    write(tmp_path, "corpus/a.txt", "corpus/b.txt")
    arguments = ("prepare", tmp_path / "corpus", "--tokenizer", "byte", "--out", tmp_path / "corpus" / "cache")
    assert command(*arguments)[0] == 0
    tokens = hr.Cache.open(tmp_path / "corpus" / "cache").num_tokens
    code, out, _ = command(*arguments)
    assert code == 0
    assert hr.Cache.open(tmp_path / "corpus" / "cache").num_tokens == tokens
    assert "1 folder with a token cache of headrace" in out
    assert found(tmp_path / "corpus" / "**")[0] == ["a.txt", "b.txt"]
    with pytest.raises(hr.HeadraceError, match="a token cache of headrace, not text"):
        found(tmp_path / "corpus" / "cache")


def test_a_run_directory_inside_the_corpus_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "runs/one/samples.txt", "runs/one/config.json")
    (tmp_path / "runs" / "one" / "environment.json").write_text('{"python": "3", "peak_flops": 1.0}')
    assert found(tmp_path) == (["a.txt"], {"folder(s) with a run directory of headrace": 1})
    assert found(tmp_path / "**" / "*.txt") == (["a.txt"], {"file(s) in a run directory of headrace": 1})


def test_links_to_folders_are_followed_once_and_loops_are_not(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/b.txt", "corpus/a.txt", "corpus/sub/c.txt")
    corpus = tmp_path / "corpus"
    (corpus / "linked").symlink_to(tmp_path / "elsewhere")
    assert found(corpus) == (["a.txt", "linked/b.txt", "sub/c.txt"], {})
    for name, target in {
        "again": tmp_path / "elsewhere",
        "loop": corpus,
        "up": tmp_path,
        "inner": corpus / "sub",
    }.items():
        (corpus / name).symlink_to(target)
    names, skipped = found(corpus)
    assert names == ["a.txt", "again/b.txt", "sub/c.txt"]
    assert skipped == {"link(s) to a folder that is read already": 4}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no names that are not UTF-8")
def test_names_that_are_not_utf8(tmp_path: Path, command: Command) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(folder)
    with open(os.path.join(folder, b"na\xefve.txt"), "wb") as file:
        file.write(b"some text\n" * 30)
    pq.write_table(pa.table({"text": ["a row of text"] * 9}), tmp_path / "x.parquet")
    os.rename(tmp_path / "x.parquet", os.path.join(folder, b"\xff.parquet"))
    name = os.fsdecode(folder)
    code, out, err = command("prepare", name, "--tokenizer", "byte", "--out", tmp_path / "cache", "--json")
    assert code == 0, err
    assert '"documents": 10' in out
    assert hr.prepare(name, tokenizer="byte", out=tmp_path / "cache").num_documents == 10
    code, _, err = command("prepare", os.path.join(name, "missing.txt"), "--tokenizer", "byte", "--out", tmp_path / "c")
    assert code == 1
    assert "missing.txt: no such file" in err
