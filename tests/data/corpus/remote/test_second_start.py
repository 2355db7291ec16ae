"""What has been read once is not asked for again: neither by a second epoch, nor by a second start."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import headrace as hr
from headrace.data.cache.build import Builder
from headrace.data.cache.open import open_or_create
from headrace.data.corpus.remote import fetch, remote_file
from headrace.data.corpus.scale import Scale, use_scale
from headrace.data.corpus.sources import as_sources
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
