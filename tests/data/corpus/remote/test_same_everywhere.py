"""One corpus, one hash: order and ids are the same from disk, S3, a web server, the hub and file systems of fsspec."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

import headrace as hr
from tests.data.corpus.remote.corpora import identity, write_archives, write_corpus
from tests.data.corpus.remote.s3_server import SECRET, S3Server
from tests.data.corpus.remote.web_server import WebServer

pytestmark = pytest.mark.usefixtures("small_scale")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_corpus(folder)
    return folder


def upload(folder: Path, store: object, prefix: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())  # type: ignore[attr-defined]


def batches(source: object, cache_dir: Path) -> list[np.ndarray]:
    with hr.Loader(source, batch_size=4, sequence_length=64, seed=3, tokenizer="byte", cache_dir=cache_dir) as loader:
        return [next(loader).inputs.copy() for _ in range(12)]


def test_folder_and_patterns_on_s3(corpus: Path, s3: S3Server, tmp_path: Path) -> None:
    upload(corpus, s3.make_bucket("everywhere"), "here/corpus")
    for number, pattern in enumerate(["", "/", "/*.txt", "/**/*.md", "/deep/0[01]*.md", "/*l*.[jp]*"]):
        local = hr.prepare(f"{corpus}{pattern}", tokenizer="byte", out=tmp_path / f"local{number}")
        remote = hr.prepare(f"s3://everywhere/here/corpus{pattern}", tokenizer="byte", out=tmp_path / f"s3{number}")
        assert identity(local) == identity(remote), pattern
        assert local.skipped == remote.skipped
    there = batches("s3://everywhere/here/corpus", tmp_path / "loader")
    for mine, theirs in zip(batches(str(corpus), tmp_path / "local-loader"), there, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for path in (tmp_path / "s30").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_archives_on_s3(tmp_path: Path, s3: S3Server) -> None:
    (tmp_path / "a").mkdir()
    names = write_archives(tmp_path / "a")
    upload(tmp_path / "a", s3.make_bucket("archives"), "a")
    local = hr.prepare([tmp_path / "a" / name for name in names], tokenizer="byte", out=tmp_path / "local")
    remote = hr.prepare([f"s3://archives/a/{name}" for name in names], tokenizer="byte", out=tmp_path / "remote")
    assert identity(local) == identity(remote)


def test_files_of_a_web_server(corpus: Path, web: WebServer, tmp_path: Path) -> None:
    names = sorted(str(path.relative_to(corpus)) for path in corpus.rglob("*") if path.is_file())
    names = [name for name in names if not name.startswith(".") and not name.endswith(".png")]
    for name in names:
        web.files[f"/c/{quote(name)}"] = (corpus / name).read_bytes()
    local = hr.prepare([corpus / name for name in names], tokenizer="byte", out=tmp_path / "local")
    remote = hr.prepare([f"{web.address}/c/{quote(name)}" for name in names], tokenizer="byte", out=tmp_path / "remote")
    assert identity(local) == identity(remote)


def test_any_file_system_of_fsspec(corpus: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(corpus), "/everywhere", recursive=True)
    try:
        local = hr.prepare(corpus, tokenizer="byte", out=tmp_path / "local")
        remote = hr.prepare("memory://everywhere", tokenizer="byte", out=tmp_path / "remote")
        assert identity(local) == identity(remote)
    finally:
        memory.rm("/everywhere", recursive=True)


@pytest.mark.parametrize("is_local_first", [True, False])
def test_files_from_here_and_there_in_one_source(is_local_first: bool, web: WebServer, tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_bytes(b"a text on this disk")
    web.files["/there.txt"] = b"a text elsewhere"
    paths = [str(tmp_path / "here.txt"), f"{web.address}/there.txt"]
    texts = ["a text on this disk", "a text elsewhere"]
    for _ in range(2):  # the second one attaches the files to the segments of the first
        cache = hr.prepare(paths if is_local_first else paths[::-1], tokenizer="byte", out=tmp_path / "cache")
        with hr.Loader(cache, 1, cache.num_tokens - 1, shuffle=False) as loader:
            found = [span.text for span in loader.explain(0)[0].spans]
        assert [text.removesuffix("<|endoftext|>") for text in found] == (texts if is_local_first else texts[::-1])
