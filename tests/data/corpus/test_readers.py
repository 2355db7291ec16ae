"""Every format and every kind of document, and the law that reading in pieces changes nothing."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.data.cache.encode import encode_documents
from headrace.data.corpus.readers import Reader
from headrace.data.corpus.segments import divide_corpus
from headrace.data.corpus.sources import Source
from tests.conftest import make_text
from tests.data.corpus.test_cuts import TEXTS
from tests.data.tokens.test_tokenizers import learned

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


def documents(source: Source) -> list[bytes]:
    """Every document of a source, whole, whatever the segments."""
    reader = Reader([source])
    found: list[bytes] = []
    is_open = False
    for segment in divide_corpus([source]):
        for chunk in reader.chunks(segment):
            for part in chunk.parts:
                texts = [document for batch in part.documents(Counter()) for document in batch]
                if is_open and texts:
                    found[-1] += texts.pop(0)
                    is_open = False
                found += texts
                is_open = is_open or part.is_open
    reader.close()
    assert not is_open
    return [document for document in found if document]


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("kind", ["file", "line", "paragraph", "delimiter"])
def test_text_in_every_form(tmp_path: Path, suffix: str, kind: str) -> None:
    text = make_text(50_000)
    (tmp_path / f"a.txt{suffix}").write_bytes(COMPRESS[suffix](text.encode()))
    source = Source(path=str(tmp_path), document=kind, delimiter="." if kind == "delimiter" else "")
    expected = {
        "file": [text],
        "line": [line for line in text.split("\n") if line],
        "paragraph": [part.strip("\n") for part in text.split("\n\n") if part.strip("\n")],
        "delimiter": [part for part in text.split(".") if part],
    }[kind]
    assert [document.decode() for document in documents(source)] == expected


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("suffix", COMPRESS)
def test_jsonl_in_every_form(tmp_path: Path, suffix: str) -> None:
    texts = [make_text(200, seed=number) for number in range(200)]
    lines = "\n".join(json.dumps({"id": n, "content": text}) for n, text in enumerate(texts))
    (tmp_path / f"a.jsonl{suffix}").write_bytes(COMPRESS[suffix](lines.encode()))
    assert [d.decode() for d in documents(Source(path=str(tmp_path), text_field="content"))] == texts


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    texts = [make_text(100, seed=number) for number in range(300)]
    values = pa.array(texts).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(texts).cast(kind)
    table = pa.table({"n": pa.array(range(300)), "text": values})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=37)
    source = Source(path=str(tmp_path))
    assert [d.decode() for d in documents(source)] == texts
    assert len(divide_corpus([source])) > 3


def test_parquet_rows_without_text_are_counted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None, "", "b"]}), tmp_path / "a.parquet")
    cache = hr.prepare([tmp_path / "a.parquet"], tokenizer="byte", out=tmp_path / "cache")
    assert cache.num_documents == 2
    assert cache.noticed["empty_documents"] == 2


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("spec", ["bpe:400", "byte", "char"])
@pytest.mark.parametrize("kind", ["file", "line"])
def test_tokens_do_not_depend_on_segments(tmp_path: Path, spec: str, kind: str) -> None:
    """A corpus read in many segments has the tokens of each document encoded whole by Hugging Face tokenizers."""
    text = make_text(80_000, seed=3)
    (tmp_path / "a.txt").write_text(text)
    tokenizer = learned(spec)
    source = Source(path=str(tmp_path / "a.txt"), document=kind)
    cache = hr.prepare([source], tokenizer=tokenizer, out=tmp_path / "cache")
    assert len(cache.segments) > 10
    found = np.concatenate([np.concatenate(list(cache.tokens(i, 0, 1 << 40))) for i in range(len(cache.segments))])
    expected = []
    for document in [text] if kind == "file" else [line for line in text.split("\n") if line]:
        expected += [*tokenizer._backend.encode(document, add_special_tokens=False).ids, tokenizer.end_of_text_id]
    assert found.tolist() == expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXTS.filter(bool), min_size=1, max_size=6), st.integers(1, 100), st.booleans())
def test_tokens_do_not_depend_on_encoding_batches(texts: list[str], nbytes: int, is_open: bool) -> None:
    tokenizer = learned("bpe:400")
    encoder = tokenizer.encoder()
    pieces = [text.encode() for text in texts]

    def encoded(size: int) -> tuple[list[int], list[int]]:
        tokens: list[int] = []
        ends: list[int] = []

        def put(part: Any, part_ends: Any) -> None:
            ends.extend(len(tokens) + end for end in part_ends.tolist())
            tokens.extend(part.tolist())

        encode_documents([pieces[:1], pieces[1:]], is_open, tokenizer, encoder, put, size)
        return tokens, ends

    assert encoded(nbytes) == encoded(1 << 30)
    tokens, ends = encoded(nbytes)
    assert len(ends) == len(texts) - is_open
    assert all(tokens[end - 1] == tokenizer.end_of_text_id for end in ends)


def test_carriage_returns_and_blank_lines_between_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\n\r\n \t\r\nthree\n\n\n\nfour\n")
    assert documents(Source(path=str(tmp_path), document="line")) == [b"one", b"two", b" \t", b"three", b"four"]
    assert documents(Source(path=str(tmp_path), document="paragraph")) == [b"one\r\ntwo", b"three", b"four"]


def test_folders_globs_and_what_is_left_out(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "sub/c.py", ".hidden/d.txt", "__pycache__/e.py", "image.png", ".secret.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert documents(Source(path=str(tmp_path))) == [b"a.md", b"b.txt", b"sub/c.py"]
    assert documents(Source(path=str(tmp_path / "**" / "*.txt"))) == [b"b.txt"]
    assert documents(Source(path=(str(tmp_path / "b.txt"), str(tmp_path)))) == [b"b.txt", b"a.md", b"sub/c.py"]
    assert documents(Source(path=str(tmp_path / "image.png"))) == [b"image.png"]  # asked for by name


def test_standard_library_is_text() -> None:
    found = documents(hr.standard_library())
    assert len(found) > 300
    assert not any(b"\0" in document for document in found)


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("kind", ["line", "paragraph", "delimiter"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["word ", "x", "\n", "\n\n", "END", "é", "a" * 700, "\n \n", "b " * 300]), min_size=1))
def test_documents_do_not_depend_on_segments(tmp_path_factory: Any, kind: str, parts: list[str]) -> None:
    """Small segments give the documents that one large segment gives, separators at every kind of place."""
    root = tmp_path_factory.mktemp("corpus")
    text = "".join(parts) * 3
    (root / "a.txt").write_text(text)
    (root / "b.txt.gz").write_bytes(gzip.compress(text.encode(), 0))
    for name in ("a.txt", "b.txt.gz"):
        source = Source(path=str(root / name), document=kind, delimiter="END" if kind == "delimiter" else "")
        found = [document.decode() for document in documents(source)]
        if kind == "line":
            assert found == [line for line in text.split("\n") if line]
        elif kind == "delimiter":
            assert found == [part for part in text.split("END") if part]
        else:
            joined = "".join(found)
            assert joined.replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")


@pytest.mark.usefixtures("small_scale")
def test_an_empty_rest_still_ends_its_document(tmp_path: Path) -> None:
    """The line feed stands right where the text had to be cut."""
    for extra in range(-3, 4):
        text = "a" * (4096 + 1024 + extra) + "\n" + "second line " * 600 + "\n" + "third"
        (tmp_path / "a.txt").write_text(text)
        source = {"path": str(tmp_path / "a.txt"), "document": "line"}
        cache = hr.prepare([source], tokenizer="byte", out=tmp_path / f"cache{extra}")
        assert cache.num_documents == 3


@pytest.mark.usefixtures("small_scale")
def test_a_long_paragraph_keeps_its_line_feeds(tmp_path: Path) -> None:
    text = "\n".join(f"wheel{n:04}" for n in range(2000))
    (tmp_path / "a.txt").write_text(text + "\n\nnext\n")
    assert documents(Source(path=str(tmp_path / "a.txt"), document="paragraph")) == [text.encode(), b"next"]


def test_lone_surrogates_in_json_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n')
    cache = hr.prepare([tmp_path / "a.jsonl"], tokenizer="byte", out=tmp_path / "cache")
    assert cache.noticed["invalid_utf8"] == 1
    refusing = {"path": str(tmp_path / "a.jsonl"), "invalid_utf8": "refuse"}
    with pytest.raises(hr.HeadraceError, match=r"a\.jsonl:1: .* lone surrogate"):
        hr.prepare([refusing], tokenizer="byte", out=tmp_path / "other")


@pytest.mark.usefixtures("small_scale")
def test_parquet_errors_name_the_row_of_the_file(tmp_path: Path) -> None:
    rows = [b"x" * 200] * 100 + [b"\xff bad"]
    pq.write_table(pa.table({"text": pa.array(rows, pa.binary())}), tmp_path / "a.parquet", row_group_size=25)
    source = {"path": str(tmp_path / "a.parquet"), "invalid_utf8": "refuse"}
    with pytest.raises(hr.HeadraceError, match=r"a\.parquet, row 100: not valid UTF-8"):
        hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")


def test_an_unreadable_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.txt").write_text("text")
    scan = os.scandir

    def refuse(path: str) -> Any:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(hr.HeadraceError, match="locked: cannot be read"):
        documents(Source(path=str(tmp_path)))
