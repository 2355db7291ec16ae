"""What has been read once is not asked for again: neither by a second epoch, nor by a second start."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import headrace as hr
from headrace.data.cache.build import Builder
from headrace.data.cache.open import open_or_create
from headrace.data.corpus.layout import list_remote
from headrace.data.corpus.remote import fetch, remote_file
from headrace.data.corpus.scale import Scale, use_scale
from headrace.data.corpus.sources import as_sources
from headrace.data.selection.options import Selection
from headrace.files import read_checked_json, write_checked_json
from tests.conftest import make_text
from tests.data.corpus.remote.corpora import identity, write_archives, write_corpus
from tests.data.corpus.remote.web_server import Answer, Request, WebServer

pytestmark = pytest.mark.usefixtures("small_scale")


@pytest.fixture
def corpus(web: WebServer, tmp_path: Path) -> list[str]:
    """The addresses of files of every format."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    names = [name for name in write_corpus(folder) if not name.endswith(".png")] + write_archives(folder)
    for name in names:
        web.files[f"/{name.replace(' ', '%20').replace('ä', '%C3%A4')}"] = (folder / name).read_bytes()
    return [f"{web.address}/{name}" for name in names]


def test_no_request_for_data(corpus: list[str], web: WebServer, tmp_path: Path) -> None:
    first = hr.prepare(corpus, tokenizer="byte", out=tmp_path / "cache")
    assert web.data_requests
    web.requests.clear()
    second = hr.prepare(corpus, tokenizer="byte", out=tmp_path / "cache")
    assert identity(first) == identity(second)
    assert web.data_requests == 0
    with hr.Loader(corpus, 4, 32, tokenizer="byte", cache_dir=tmp_path / "cache") as loader:
        for _ in range(2 * loader.steps_per_epoch + 1):
            next(loader)
    assert web.data_requests == 0


def test_second_epoch_without_the_server(corpus: list[str], web: WebServer, tmp_path: Path) -> None:
    with hr.Loader(corpus, 4, 32, tokenizer="byte", cache_dir=tmp_path / "cache") as loader:
        length = loader.steps_per_epoch
        for _ in range(length):
            next(loader)
        web.shutdown()
        for _ in range(length):
            next(loader)


def test_one_more_file_is_one_file_s_work(web: WebServer, tmp_path: Path) -> None:
    for number in range(3):
        web.files[f"/{number}.jsonl"] = b'{"text": "one line of text"}\n' * 500
    names = [f"{web.address}/{number}.jsonl" for number in range(3)]
    hr.prepare(names[:2], tokenizer="byte", out=tmp_path / "cache")
    web.requests.clear()
    hr.prepare(names, tokenizer="byte", out=tmp_path / "cache")
    assert {request.path for request in web.requests if request.is_for_data} == {"/2.jsonl"}


def test_an_interrupted_build_continues(web: WebServer, tmp_path: Path) -> None:
    text = make_text(60_000).encode()
    web.files["/corpus.txt"] = text
    sources = as_sources(f"{web.address}/corpus.txt")
    cache = open_or_create(sources, "byte", tmp_path / "cache")
    with Builder(cache, num_workers=1) as builder:
        cache.require([0, 1, 2])
        builder.close()
    done = sum(cache.has(index) for index in range(len(cache.segments)))
    assert done >= 3
    web.requests.clear()
    again = hr.prepare(f"{web.address}/corpus.txt", tokenizer="byte", out=tmp_path / "cache")
    assert again.num_tokens == len(text) + 1
    assert web.data_requests <= 2 * (len(cache.segments) - done)


def test_ranges_are_read_in_parallel(web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "PART_BYTES", 1024)
    web.files["/corpus.txt"] = make_text(60_000).encode()
    web.has_etags = False
    most = 0

    def slow(request: Request, answer: Answer) -> None:
        nonlocal most
        answer.pause_s = 0.03
        most = max(most, fetch._pool._num_busy)

    web.trouble = slow
    hr.prepare(f"{web.address}/corpus.txt", tokenizer="byte", out=tmp_path / "cache", num_workers=1)
    assert most >= 4


def test_small_files_are_fetched_ahead(web: WebServer, tmp_path: Path) -> None:
    for number in range(30):
        web.files[f"/{number:02}.txt"] = b"a few words"
    names = [f"{web.address}/{number:02}.txt" for number in range(30)]
    most = 0

    def slow(request: Request, answer: Answer) -> None:
        nonlocal most
        if request.is_for_data:
            answer.pause_s = 0.03
            most = max(most, fetch._pool._num_busy)

    web.trouble = slow
    cache = hr.prepare(names, tokenizer="byte", out=tmp_path / "cache", num_workers=1)
    assert cache.num_documents == 30
    assert web.data_requests == 30
    assert most >= 8


def test_a_file_read_front_to_back_is_fetched_once(web: WebServer, tmp_path: Path) -> None:
    data = gzip.compress(make_text(9_000_000).encode(), compresslevel=1)
    web.files["/text.txt.gz"] = data
    with use_scale(Scale()):
        hr.prepare(f"{web.address}/text.txt.gz", tokenizer="byte", out=tmp_path / "cache")
    fetched = 0
    for request in web.requests:
        if request.is_for_data:
            begin, _, end = (
                request.headers.get("range", f"bytes=0-{len(data) - 1}").removeprefix("bytes=").partition("-")
            )
            fetched += int(end) + 1 - int(begin)
    assert len(data) <= fetched <= 1.3 * len(data)


def _select(web: WebServer, cache: Path, how: str) -> hr.Cache:
    """Prepare a web server's lines, all of them or a selection, and forget the requests of before."""
    source: dict[str, object] = {"path": f"{web.address}/lines.txt", "document": "line"}
    if how == "filter":
        source["min_document_bytes"] = 7
    web.requests.clear()
    return hr.prepare([source], "byte", cache, deduplicate="exact" if how == "dedup" else "none")


@pytest.mark.parametrize("how", ["dedup", "filter"])
def test_selections_from_one_list_of_files(how: str, web: WebServer, tmp_path: Path) -> None:
    """What was selected the last time is neither taken for the whole corpus, nor read again."""
    web.files["/lines.txt"] = "".join(f"line {number % 50}\n" for number in range(3000)).encode()
    everything = identity(_select(web, tmp_path / "everything", "all"))
    selected = _select(web, tmp_path / "cache", how)
    assert identity(selected)[2] < everything[2]
    again = _select(web, tmp_path / "cache", how)
    assert web.data_requests == 0
    assert identity(again) == identity(selected)
    assert identity(_select(web, tmp_path / "cache", "all")) == everything
    assert identity(_select(web, tmp_path / "cache", how)) == identity(selected)


def test_a_survey_is_made_once(web: WebServer, tmp_path: Path) -> None:
    """A build that drops duplicates, killed after it has read all text for them, does not read it for them again."""
    web.files["/lines.txt"] = "".join(f"line {number % 500}\n" for number in range(3000)).encode()
    sources = as_sources({"path": f"{web.address}/lines.txt", "document": "line"})
    first = open_or_create(sources, "byte", tmp_path / "cache", selection=Selection("exact"))
    assert web.data_requests
    web.requests.clear()
    second = open_or_create(sources, "byte", tmp_path / "cache", selection=Selection("exact"))
    assert web.data_requests == 0
    assert [s.fingerprint for s in first.segments] == [s.fingerprint for s in second.segments]


def test_a_manifest_from_before_layouts_were_kept(web: WebServer, tmp_path: Path) -> None:
    web.files["/lines.txt"] = b"one line\n" * 3000
    first = _select(web, tmp_path / "cache", "all")
    manifest = read_checked_json(tmp_path / "cache" / "manifest.json")
    manifest["listing"] = manifest.pop("layout")["listing"]
    write_checked_json(tmp_path / "cache" / "manifest.json", manifest, tmp_path / "scratch")
    assert identity(_select(web, tmp_path / "cache", "all")) == identity(first)
    assert read_checked_json(tmp_path / "cache" / "manifest.json")["layout"]["fingerprints"]


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[str]:
    """The address of a folder with a table between texts that has no column of text."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe("/tables/a.txt", b"first file " * 30)
    memory.pipe("/tables/b.csv", b"x,y\n1,2\n3,4\n")
    memory.pipe("/tables/c.txt", b"the last file " * 30)
    yield "memory://tables"
    memory.rm("/tables", recursive=True)


def test_tables_without_text_stay_left_out(tables: str, tmp_path: Path) -> None:
    first = hr.prepare(tables, "byte", tmp_path / "cache")
    assert sum(first.skipped.values()) == 1
    second = hr.prepare(tables, "byte", tmp_path / "cache")
    assert (identity(second), second.skipped) == (identity(first), first.skipped)
    open_or_create(as_sources(tables), "byte", tmp_path / "killed")  # before anything was tokenised
    opened = open_or_create(as_sources(tables), "byte", tmp_path / "killed")
    assert [file.name for file in opened.segments[0].files] == ["a.txt", "c.txt"]
    assert identity(hr.prepare(tables, "byte", tmp_path / "killed")) == identity(first)


def test_segments_of_other_files_are_not_attached(tables: str, tmp_path: Path) -> None:
    cache = open_or_create(as_sources(tables), "byte", tmp_path / "cache")
    listing = list_remote(as_sources(tables), Counter())
    assert listing is not None and cache.layout is not None
    assert listing.attach(cache.segments, cache.layout)
    assert listing.attach(cache.segments, replace(cache.layout, left_out=[[]])) is None  # b.csv is left over
    assert listing.attach(cache.segments, replace(cache.layout, left_out=[[0, 1]])) is None  # a.txt is missing
    assert listing.attach(cache.segments, replace(cache.layout, listing="another")) is None
