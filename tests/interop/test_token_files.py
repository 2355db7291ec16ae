"""Other projects' token files as a cache: the same tokens, never copied; and every way in which they can be wrong."""

from __future__ import annotations

import os
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.data.corpus.scale import use_scale
from headrace.errors import TokenFileError, UsageError
from headrace.interop.grain import GrainSource
from headrace.interop.token_files import TokenFileCache, open_token_files
from headrace.interop.token_formats import read_token_file
from tests.conftest import SMALL

pytestmark = pytest.mark.usefixtures("small_scale")

BATCH, LENGTH, VOCABULARY = 4, 16, 300
DOCUMENTS = [np.append(np.random.default_rng(n).integers(1, VOCABULARY, 20 + 7 * n % 90), 0) for n in range(200)]
TOKENS = np.concatenate(DOCUMENTS)
ENDS = np.cumsum([len(document) for document in DOCUMENTS])


@pytest.fixture
def tokenizer(cache: hr.Cache) -> str:
    assert cache.tokenizer.vocab_size == VOCABULARY and cache.tokenizer.end_of_text_id == 0
    return str(cache.path / "tokenizer.json")


def write_nanogpt(folder: Path, dtype: str = "<u2") -> Path:
    TOKENS.astype(dtype).tofile(folder / "train.bin")
    return folder / "train.bin"


def write_olmo(folder: Path, dtype: str = "<u2") -> Path:
    TOKENS.astype(dtype).tofile(folder / "part-0.npy")
    return folder / "part-0.npy"


def write_numpy(folder: Path, dtype: str = "<u2") -> Path:
    np.save(folder / "tokens.npy", TOKENS.astype(dtype))
    return folder / "tokens.npy"


def write_datatrove(folder: Path, dtype: str = "<u2") -> Path:
    TOKENS.astype(dtype).tofile(folder / "000_shuffled.ds")
    ENDS.astype("<u8").tofile(folder / "000_shuffled.ds.index")
    return folder / "000_shuffled.ds"


def write_megatron(folder: Path, dtype: str = "<u2", code: int | None = None) -> Path:
    codes = {"<u2": 8, "<i2": 3, "<i4": 4, "<i8": 5, "<f4": 7}
    TOKENS.astype(dtype).tofile(folder / "text_document.bin")
    lengths = np.array([len(document) for document in DOCUMENTS])
    pointers = (ENDS - lengths) * np.dtype(dtype).itemsize
    with open(folder / "text_document.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code or codes[dtype], len(lengths), len(lengths) + 1))
        file.write(lengths.astype("<i4").tobytes() + pointers.astype("<i8").tobytes())
        file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
    return folder / "text_document.bin"


WRITERS = [
    (write_nanogpt, "<u2"), (write_olmo, "<u2"), (write_olmo, "<u4"), (write_numpy, "<u2"), (write_numpy, "<i4"),
    (write_datatrove, "<u2"), (write_datatrove, "<u4"), (write_megatron, "<u2"), (write_megatron, "<i4"),
]  # fmt: skip


def all_tokens(cache: hr.Cache) -> np.ndarray[Any, Any]:
    return np.concatenate(
        [part for s in range(len(cache.segments)) for part in cache.tokens(s, 0, cache.entry(s).num_tokens)]
    )


@pytest.mark.parametrize(("write", "dtype"), WRITERS)
def test_every_format_gives_its_tokens_and_documents(tmp_path: Path, tokenizer: str, write: Any, dtype: str) -> None:
    cache = open_token_files(write(tmp_path, dtype), tokenizer, dtype="uint32" if dtype == "<u4" else None)
    assert len(cache.segments) > 3
    assert cache.num_tokens == len(TOKENS) and cache.num_documents == len(DOCUMENTS)
    tokens = all_tokens(cache)
    assert tokens.dtype.itemsize == np.dtype(dtype).itemsize
    np.testing.assert_array_equal(tokens, TOKENS)
    assert cache.verify() == []
    for segment in range(len(cache.segments)):  # cut between documents
        assert cache.document_ends(segment)[-1] == cache.entry(segment).num_tokens


@pytest.mark.parametrize("packing", ["stream", "document"])
@pytest.mark.parametrize(("write", "dtype"), [(write_nanogpt, "<u2"), (write_megatron, "<i4")])
def test_the_loader_serves_every_row_once_and_resumes(
    tmp_path: Path, tokenizer: str, write: Any, dtype: str, packing: Any
) -> None:
    cache = open_token_files(write(tmp_path, dtype), tokenizer)
    with hr.Loader(cache, BATCH, LENGTH, packing=packing) as loader:
        assert all(ledger.trained + ledger.carried + ledger.dropped == len(TOKENS) for ledger in loader.ledger())
        next(loader)
        state = loader.state()
        expected = [next(loader) for _ in range(5)]
        assert loader.explain(3)[0].spans[0].file == str(tmp_path / Path(cache.segments[0].path).name)
    with hr.Loader(open_token_files(cache.segments[0].path, tokenizer), BATCH, LENGTH, packing=packing) as loader:
        loader.restore(state)
        for batch in expected:
            np.testing.assert_array_equal(next(loader).inputs, batch.inputs)


def test_windows_in_corpus_order_are_the_file(tmp_path: Path, tokenizer: str) -> None:
    cache = open_token_files([write_nanogpt(tmp_path)], tokenizer)
    with hr.Loader(cache, BATCH, LENGTH, shuffle=False) as loader:
        rows = np.concatenate([next(loader).inputs for _ in range(20)])
    np.testing.assert_array_equal(rows.reshape(-1), TOKENS[: rows.size])
    source = pickle.loads(pickle.dumps(GrainSource(cache, LENGTH)))
    np.testing.assert_array_equal(source[5]["inputs"], rows[5])


def test_validation_takes_whole_documents_or_the_tail(tmp_path: Path, tokenizer: str) -> None:
    for path in (write_nanogpt(tmp_path), write_datatrove(tmp_path)):
        cache = open_token_files(path, tokenizer)
        with hr.Loader(cache, 1, LENGTH, split="validation", validation_fraction=0.2, shuffle=False) as loader:
            share = loader.ledger()[0].tokens / len(TOKENS)
        assert 0.1 < share < 0.3


def test_several_files_are_one_corpus(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "a").mkdir()
    paths = [write_nanogpt(tmp_path), write_olmo(tmp_path / "a")]
    cache = open_token_files(paths, tokenizer)
    np.testing.assert_array_equal(all_tokens(cache), np.concatenate([TOKENS, TOKENS]))
    with pytest.raises(TokenFileError, match="must be of one type"):
        open_token_files([paths[0], write_numpy(tmp_path, "<u4")], tokenizer)


def refused(path: Path, tokenizer: Any, message: str, **options: Any) -> None:
    with pytest.raises(TokenFileError, match=message) as caught:
        all_tokens(open_token_files(path, tokenizer, **options))
    assert str(path.parent) in str(caught.value)


def test_files_of_odd_length_are_refused(tmp_path: Path, tokenizer: str) -> None:
    for write in (write_nanogpt, write_olmo, write_numpy, write_megatron):
        path = write(tmp_path)
        with open(path, "ab") as file:
            file.write(b"x")
        refused(path, tokenizer, "no whole number of uint16 tokens")
    path = write_datatrove(tmp_path)
    os.truncate(path, path.stat().st_size - 2)
    refused(path, tokenizer, "its index ends at token")
    os.truncate(f"{path}.index", 5)
    refused(path, tokenizer, "not document ends")
    os.truncate(path, 0)
    os.unlink(f"{path}.index")
    refused(path, tokenizer, "no tokens")


def test_types_that_cannot_be_mapped_are_refused(tmp_path: Path, tokenizer: str) -> None:
    refused(write_megatron(tmp_path, "<i8"), tokenizer, "int64 values.*without copying")
    refused(write_megatron(tmp_path, "<f4"), tokenizer, "float32 values")
    refused(write_numpy(tmp_path, ">u2"), tokenizer, "big-endian")
    np.save(tmp_path / "square.npy", np.zeros((2, 2), np.uint16))
    refused(tmp_path / "square.npy", tokenizer, "flattened")
    with pytest.raises(UsageError, match="'uint16' or 'uint32'"):
        open_token_files(write_nanogpt(tmp_path), tokenizer, dtype="tokens")


def test_ids_above_the_vocabulary_are_refused(tmp_path: Path, tokenizer: str) -> None:
    tokens = TOKENS.astype("<u2")
    tokens[5000] = VOCABULARY
    tokens.tofile(tmp_path / "train.bin")
    refused(tmp_path / "train.bin", tokenizer, "token 5,000 is 300, beyond the tokenizer's 300 ids")
    cache = open_token_files(tmp_path / "train.bin", tokenizer)
    assert any("5,000" in problem for problem in cache.verify())
    with hr.Loader(cache, BATCH, LENGTH) as loader, pytest.raises(TokenFileError, match="5,000"):
        for _ in range(loader.steps_per_epoch):
            next(loader)
    write_nanogpt(tmp_path, "<u4")  # read as uint16, every other token is 0, and half the length is lost to it
    assert open_token_files(tmp_path / "train.bin", tokenizer, dtype="uint32").num_tokens == len(TOKENS)


def test_a_file_changed_while_in_use_is_refused(tmp_path: Path, tokenizer: str) -> None:
    path = write_nanogpt(tmp_path)
    cache = open_token_files(path, tokenizer)
    with hr.Loader(cache, BATCH, LENGTH, prefetch_batches=0) as loader:
        next(loader)
        with open(path, "r+b") as file:
            file.write(b"\x07\x00")
        os.utime(path, ns=(0, 1))  # a file system's clock may be too coarse to show it
        with pytest.raises(TokenFileError, match="changed while in use"):
            next(loader)
    cache = open_token_files(path, tokenizer)
    path.unlink()
    with hr.Loader(cache, BATCH, LENGTH) as loader, pytest.raises(TokenFileError, match="gone while in use"):
        next(loader)


def test_files_of_other_kinds_are_named(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "tokens.txt").write_text("1 2 3")
    refused(tmp_path / "tokens.txt", tokenizer, r"known are \.bin")
    refused(tmp_path / "missing.bin", tokenizer, "cannot be read")
    (tmp_path / "llm.bin").write_bytes(struct.pack("<i", 20240520) + bytes(2000))
    refused(tmp_path / "llm.bin", tokenizer, "llm.c")
    path = write_megatron(tmp_path)
    index = path.with_suffix(".idx")
    whole = index.read_bytes()
    for damage, message in ((whole[:50], "truncated"), (b"TNTIDX" + whole[6:], "MMIDIDX"), (whole[:-3], "truncated")):
        index.write_bytes(damage)
        refused(path, tokenizer, message)
    swapped = np.frombuffer(whole, "<i4", len(DOCUMENTS), 34)[::-1]
    index.write_bytes(whole[:34] + swapped.tobytes() + whole[34 + swapped.nbytes :])
    refused(path, tokenizer, "cannot be mapped")
    path = write_datatrove(tmp_path)
    Path(f"{path}.loss").write_bytes(b"\x01")
    refused(path, tokenizer, "loss mask")


def test_the_tokenizer_must_be_the_one_that_made_them(tmp_path: Path, cache: hr.Cache) -> None:
    with pytest.raises(UsageError, match="the tokenizer that made them"):
        open_token_files(write_nanogpt(tmp_path), "bpe:300")
    with pytest.raises(UsageError, match="no token file"):
        open_token_files([], cache.tokenizer)


class Counted(np.ndarray[Any, Any]):
    """An array that counts the elements that arithmetic and comparisons go through."""

    elements = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        Counted.elements += max(np.size(value) for value in inputs)
        plain = [value.view(np.ndarray) if isinstance(value, Counted) else value for value in inputs]
        return getattr(ufunc, method)(*plain, **options)


def test_opening_looks_at_each_document_a_few_times(
    cache: hr.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each segment: both grow with the file."""
    file = read_token_file(write_datatrove(tmp_path), np.dtype("<u2"))
    assert file.ends is not None
    monkeypatch.setattr(Counted, "elements", 0)
    with use_scale(replace(SMALL, token_segment_tokens=50)):
        opened = TokenFileCache([replace(file, ends=file.ends.view(Counted))], cache.tokenizer)
    assert len(opened.segments) > 100
    assert Counted.elements <= 5 * len(ENDS)
    assert sum(opened.entry(number).num_documents for number in range(len(opened.segments))) == len(ENDS)
