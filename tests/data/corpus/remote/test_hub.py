"""Datasets of the hub as a corpus, from a stand-in for its endpoint on localhost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.data.cache.build import Builder
from headrace.data.cache.open import open_or_create
from headrace.data.corpus.remote.hub_store import HubStore
from headrace.data.corpus.remote.store import Failure
from headrace.data.corpus.sources import as_sources
from headrace.errors import CorpusError
from tests.data.corpus.remote.corpora import identity, write_corpus
from tests.data.corpus.remote.hub_server import Hub, hub_server
from tests.data.corpus.remote.web_server import Answer, Request

pytestmark = pytest.mark.usefixtures("small_scale")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as server:
        template = "{repo_id}/resolve/{revision}/{filename}"  # what HF_ENDPOINT sets when huggingface_hub is imported
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.server.address)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", f"{server.server.address}/{template}"
        )
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield server


def test_same_as_on_disk(hub: Hub, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_corpus(corpus)
    files = {str(path.relative_to(corpus)): path.read_bytes() for path in corpus.rglob("*") if path.is_file()}
    hub.datasets["me/mine"] = {f"data/{name}": data for name, data in files.items()}
    for number, pattern in enumerate(["", "/*.parquet", "/lines.jsonl"]):
        local = hr.prepare(f"{corpus}{pattern}", tokenizer="byte", out=tmp_path / f"local{number}")
        address = f"hf://datasets/me/mine/data{pattern}"
        remote = hr.prepare(address, tokenizer="byte", out=tmp_path / f"hub{number}")
        assert identity(local) == identity(remote), pattern
    assert "Bearer hf_secret" in hub.tokens
    for path in (tmp_path / "hub0").rglob("*"):
        assert path.is_dir() or b"hf_secret" not in path.read_bytes()
    hub.server.requests.clear()
    hr.prepare("hf://datasets/me/mine/data", tokenizer="byte", out=tmp_path / "hub0")
    assert not [request for request in hub.server.requests if "/resolve/" in request.path]


def test_files_are_read_as_they_were_listed(hub: Hub, tmp_path: Path) -> None:
    hub.datasets["me/mine"] = {"a.txt": b"before " * 100, "b.txt": b"other " * 2000}
    cache = open_or_create(as_sources("hf://datasets/me/mine"), "byte", tmp_path / "cache")
    hub.datasets["me/mine"]["a.txt"] = b"after " * 100
    hub.commit("me/mine")
    with Builder(cache) as builder:
        builder.wait()
    hub.server.requests.clear()
    hr.prepare("hf://datasets/me/mine", tokenizer="byte", out=tmp_path / "cache")
    read = {request.path.rpartition("/")[2] for request in hub.server.requests if "/resolve/" in request.path}
    assert read == {"a.txt"}  # a commit that changes one file is one file's work


def test_each_listing_keeps_its_own_commit(hub: Hub, tmp_path: Path) -> None:
    """Training text listed before a commit is read as it was, though validation text is listed after it."""
    hub.datasets["me/mine"] = {"a.txt": b"before" * 100, "v.txt": b"other " * 100}
    training = open_or_create(as_sources("hf://datasets/me/mine/a.txt"), "byte", tmp_path / "cache")
    hub.datasets["me/mine"]["a.txt"] = b"after " * 100
    open_or_create(as_sources("hf://datasets/me/mine/v.txt"), "byte", tmp_path / "validation")
    with Builder(training) as builder:
        builder.wait()
    (tmp_path / "a.txt").write_bytes(b"before" * 100)
    assert identity(training) == identity(hr.prepare(tmp_path / "a.txt", "byte", tmp_path / "local"))


def test_another_process_reads_what_was_listed_or_nothing(hub: Hub) -> None:
    hub.datasets["me/mine"] = {"a.txt": b"before"}
    entry = HubStore("hf://").look_up("datasets/me/mine/a.txt")
    assert entry is not None
    assert b"".join(HubStore("hf://").read(entry, 0, 6)) == b"before"
    hub.datasets["me/mine"]["a.txt"] = b"after "
    with pytest.raises(Failure, match="changed while the corpus was being read"):
        list(HubStore("hf://").read(entry, 0, 6))


def test_a_hub_that_never_answers(hub: Hub, tmp_path: Path) -> None:
    def stall(request: Request, answer: Answer) -> None:
        answer.status, answer.headers, answer.body = 200, {"Content-Length": "9"}, b""
        answer.pause_s = 30.0

    hub.server.trouble = stall
    began = time.monotonic()
    with pytest.raises(CorpusError, match="the server does not answer, or stopped sending"):
        hr.prepare("hf://datasets/me/mine", tokenizer="byte", out=tmp_path / "cache")
    assert time.monotonic() - began < 20


def test_what_is_not_there(hub: Hub, tmp_path: Path) -> None:
    hub.datasets["me/mine"] = {"a.txt": b"text"}
    for address, message in {
        "hf://datasets/me/other/a.txt": "there is no such repository on the hub, or it is private. Check the address",
        "hf://datasets/me/mine@old/a.txt": "the repository has no revision 'old'",
        "hf://datasets/me/mine/b.txt": "no such file or folder",
        "hf://datasets/me/mine/*.md": "no file matches this pattern",
        "hf://mine": "An address is hf://datasets/OWNER/NAME/PATH",
    }.items():
        with pytest.raises(CorpusError) as problem:
            hr.prepare(address, tokenizer="byte", out=tmp_path / "cache")
        assert str(problem.value).startswith(f"{address}")
        assert message in str(problem.value)
        assert "hf_secret" not in str(problem.value)
