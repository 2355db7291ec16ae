"""Bad input: one message naming the file and the place, an exit code, no traceback, and a next start that works."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.data.cache.build import Builder
from headrace.data.cache.open import open_or_create
from headrace.data.corpus.formats.text import PlainText
from headrace.data.corpus.sources import as_sources
from tests.conftest import make_text

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def prepare(command: Command, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """`headrace prepare` into a cache of this test: exit code and what was said. Never a traceback or leftover."""

    def run(*arguments: object, tokenizer: str = "byte") -> tuple[int, str]:
        code, out, err = command("prepare", *arguments, "--tokenizer", tokenizer, "--out", tmp_path / "cache")
        assert "Traceback" not in err
        if code:
            assert "error: " in err
            assert not (tmp_path / "cache" / "manifest.json").exists()
        assert not list((tmp_path / "cache").glob("tmp/*")) if (tmp_path / "cache").exists() else True
        return code, err + out

    return run


Prepare = Callable[..., tuple[int, str]]


def test_missing_path(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("text")
    code, said = prepare(tmp_path / "corpsu.txt")
    assert code == 1
    assert "corpsu.txt: no such file or folder. Did you mean" in said
    assert prepare(tmp_path / "corpus.txt")[0] == 0


def test_pattern_without_match(prepare: Prepare, tmp_path: Path) -> None:
    code, said = prepare(tmp_path / "*.txt")
    assert code == 1
    assert "no file matches" in said


@pytest.mark.parametrize("content", [b"", b"\n\n\n"])
def test_empty_corpus(prepare: Prepare, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    code, said = prepare(tmp_path / "a.txt", "--document", "line")
    assert code == 1
    assert "empty" in said
    (tmp_path / "a.txt").write_text("text\n")
    assert prepare(tmp_path / "a.txt", "--document", "line")[0] == 0


def test_empty_file_among_others(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "empty.txt").touch()
    (tmp_path / "corpus" / "full.txt").write_text("text")
    assert prepare(tmp_path / "corpus")[0] == 0
    assert hr.Cache.open(tmp_path / "cache").num_documents == 1


def test_folder_with_nothing_readable(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"\x89PNG")
    code, said = prepare(tmp_path / "pictures")
    assert code == 1
    assert "no readable file in this folder. headrace reads .txt" in said


def test_invalid_utf8(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good \xff\xfe bad \xe6\xb0 end")
    code, said = prepare(tmp_path / "a.txt", "--invalid-utf8", "refuse")
    assert code == 1
    assert "a.txt: not valid UTF-8 at byte 5 (0xff)" in said
    code, said = prepare(tmp_path / "a.txt")
    assert code == 0
    assert "3 invalid UTF-8 sequences, replaced" in said
    tokens = np.concatenate(list(hr.Cache.open(tmp_path / "cache").tokens(0, 0, 1 << 20)))
    assert bytes(tokens[:-1].astype(np.uint8)).decode() == "good �� bad � end"


def test_byte_order_mark(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbftext")
    code, said = prepare(tmp_path / "a.txt")
    assert code == 0
    assert "1 byte order mark, removed" in said
    assert hr.Cache.open(tmp_path / "cache").num_tokens == 5


def test_utf16(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text", encoding="utf-16")
    code, said = prepare(tmp_path / "a.txt")
    assert code == 1
    assert "a.txt: this is UTF-16 text" in said


def test_nul_bytes(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\0b\0c")
    code, said = prepare(tmp_path / "a.txt")
    assert code == 0
    assert "2 NUL bytes, kept" in said
    assert hr.Cache.open(tmp_path / "cache").num_tokens == 6


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{broken", "not valid JSON (Expecting property name"),
        ('["text"]', "a JSON list where an object"),
        ('{"body": "x"}', "no field 'text' (fields here: body)"),
        ('{"text": 3}', "field 'text' holds int, not a string"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_malformed_json_line(prepare: Prepare, tmp_path: Path, line: str, complaint: str, suffix: str) -> None:
    file = tmp_path / f"a.jsonl{suffix}"
    good = '{"text": "fine"}\n'
    data = (good * 3 + line + "\n" + good).encode()
    file.write_bytes(gzip.compress(data) if suffix else data)
    code, said = prepare(file)
    assert code == 1
    assert f"{file}:4: {complaint}" in said
    code, said = prepare(file, "--malformed-lines", "skip")
    assert code == 0
    assert "1 malformed line, skipped" in said
    assert hr.Cache.open(tmp_path / "cache").num_documents == 4


def truncated(tmp_path: Path, kind: str) -> Path:
    text = make_text(30_000).encode()
    if kind == "parquet":
        buffer = io.BytesIO()
        pq.write_table(pa.table({"text": [text.decode()]}), buffer)
        data, file = buffer.getvalue(), tmp_path / "a.parquet"
    else:
        pack: dict[str, Callable[[bytes], bytes]] = {
            "gz": gzip.compress,
            "xz": lzma.compress,
            "zst": lambda raw: pa.compress(raw, codec="zstd", asbytes=True),
        }
        data, file = pack[kind](text), tmp_path / f"a.txt.{kind}"
    file.write_bytes(data[: len(data) * 2 // 3])
    return file


@pytest.mark.parametrize("kind", ["gz", "zst", "xz", "parquet"])
def test_truncated_file(prepare: Prepare, tmp_path: Path, kind: str) -> None:
    file = truncated(tmp_path, kind)
    code, said = prepare(file)
    assert code == 1
    assert f"{file}: " in said
    assert "truncated" in said or "not a readable parquet file" in said


def test_damaged_parquet_body(prepare: Prepare, tmp_path: Path) -> None:
    rows = [make_text(500, seed=n) for n in range(100)]
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", compression="zstd")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[100:4000] = bytes(3900)
    (tmp_path / "a.parquet").write_bytes(data)
    code, said = prepare(tmp_path / "a.parquet")
    assert code == 1
    assert "a.parquet: damaged or truncated parquet file" in said


def test_parquet_without_the_column(prepare: Prepare, tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"], "n": [1]}), tmp_path / "a.parquet")
    assert "no column 'text' (it has: body, n)" in prepare(tmp_path / "a.parquet")[1]
    assert "column 'n' holds int64, not text" in prepare(tmp_path / "a.parquet", "--text-field", "n")[1]
    assert prepare(tmp_path / "a.parquet", "--text-field", "body")[0] == 0


@pytest.mark.parametrize("kind", ["gz", "zst", "xz"])
def test_decompression_bomb(prepare: Prepare, tmp_path: Path, kind: str) -> None:
    """300 MB of nothing in a few kilobytes: refused after 64 MiB, and little was written."""
    block = b" " * (1 << 20)
    file = tmp_path / f"bomb.txt.{kind}"
    if kind == "zst":
        with pa.CompressedOutputStream(pa.OSFile(str(file), "wb"), "zstd") as stream:
            for _ in range(300):
                stream.write(block)
    else:
        open_compressed: Any = gzip.open if kind == "gz" else lzma.open
        with open_compressed(file, "wb") as stream:
            for _ in range(300):
                stream.write(block)
    code, said = prepare(file)
    assert code == 1
    assert f"{file}: expands to more than" in said
    assert "raise the limit: data.max_expansion=FACTOR" in said
    used = sum(f.stat().st_size for f in (tmp_path / "cache").rglob("*") if f.is_file())
    assert used < 160 << 20


@pytest.mark.parametrize("change", ["grown", "removed", "replaced"])
def test_a_file_changed_while_being_read(tmp_path: Path, change: str) -> None:
    file = tmp_path / "a.txt"
    file.write_text(make_text(10_000))
    cache = open_or_create(as_sources(file), "byte", tmp_path / "cache")
    if change == "removed":
        file.unlink()
    else:
        file.write_text(make_text(20_000 if change == "grown" else 10_000, seed=9))
    with pytest.raises(hr.HeadraceError, match=r"a\.txt: (changed|was removed) while"), Builder(cache) as builder:
        builder.wait()
    file.write_text(make_text(12_000))
    assert not hr.prepare([file], tokenizer="byte", out=tmp_path / "cache").verify()


def test_a_file_changed_in_the_middle_of_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_text(make_text(10_000))
    source = as_sources(file)[0]
    from headrace.data.corpus.discovery import iterate_files

    planned = next(iterate_files(source))
    read = os.pread

    def read_then_change(*arguments: int) -> bytes:
        data = read(*arguments)
        file.write_text(make_text(11_000))
        return data

    monkeypatch.setattr("os.pread", read_then_change)
    with pytest.raises(hr.HeadraceError, match="changed while the corpus was being read"):
        PlainText().read_range(source, planned, 0, planned.size, True)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_full_disk(command: Command, tmp_path: Path, tiny_disk: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(2_000_000))
    code, _, err = command("prepare", tmp_path / "a.txt", "--tokenizer", "byte", "--out", tiny_disk / "cache")
    assert code == 1
    assert "the disk is full. Free some space" in err
    assert not list(tiny_disk.glob("cache/tmp/*"))
    (tmp_path / "a.txt").write_text(make_text(20_000))
    assert command("prepare", tmp_path / "a.txt", "--tokenizer", "byte", "--out", tiny_disk / "cache")[0] == 0


def test_unwritable_place(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    code, _, err = command("prepare", tmp_path / "a.txt", "--tokenizer", "byte", "--out", "/proc/nowhere/cache")
    assert code == 1
    assert "/proc/nowhere/cache" in err
    code, _, err = command("prepare", tmp_path / "a.txt", "--tokenizer", "byte", "--out", tmp_path / "a.txt")
    assert code == 1
    assert "is a file; a cache is a folder" in err


def test_a_folder_that_is_something_else(command: Command, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    (tmp_path / "a.txt").write_text("text")
    code, _, err = command("prepare", tmp_path / "a.txt", "--tokenizer", "byte", "--out", tmp_path / "photos")
    assert code == 1
    assert "holds something other than a token cache" in err


@pytest.mark.parametrize("packing", ["stream", "document"])
def test_sequence_length_longer_than_the_corpus(tmp_path: Path, packing: Any) -> None:
    (tmp_path / "a.txt").write_text("tiny")
    for source, options in (
        (hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache"), {}),
        (tmp_path / "a.txt", {"tokenizer": "byte", "cache_dir": tmp_path / "raw"}),
    ):
        with hr.Loader(source, 2, 5, packing=packing, **options) as loader:
            if packing == "stream":
                with pytest.raises(hr.HeadraceError, match=r"sequence length 5 is too long for .* \(5 tokens\)"):
                    next(loader)
            else:
                assert next(loader).num_tokens == 8  # packed documents may be shorter than a row
        with hr.Loader(source, 2, 4, packing=packing, **options) as loader:
            next(loader)


def test_wrong_options(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    for arguments, complaint in (
        (("prepare", tmp_path / "a.txt", "--document", "page"), "is not one of 'file', 'line'"),
        (("prepare", tmp_path / "a.txt", "--document", "delimiter"), "go together"),
        (("prepare", tmp_path / "a.txt", "--tokenizer", "bpe:12"), "at least 257"),
        (("prepare", tmp_path / "a.txt", "--memory-budget", "lots"), "not a size"),
        (("prepare", tmp_path / "a.txt", "--memory-budget", "1MiB"), "too small"),
        (("prepare", "--no-such-option"), "No such option"),
        (("inspect", tmp_path, "--packing", "tetris"), "is not one of 'stream', 'document'"),
        (("nonsense",), "No such command"),
    ):
        if arguments[0] == "prepare" and len(arguments) > 2:
            arguments = (*arguments, "--out", tmp_path / "cache")
        if arguments[0] == "inspect":
            hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
            arguments = ("inspect", tmp_path / "cache", *arguments[2:])
        code, _, err = command(*arguments)
        assert code == 2, arguments
        assert complaint in err, err


def test_weights_for_some_sources_only() -> None:
    with pytest.raises(hr.HeadraceError, match=r"'b\.txt' has no weight"):
        hr.prepare([{"path": "a.txt", "weight": 1}, "b.txt"])
    with pytest.raises(hr.HeadraceError, match="fields of a source: path"):
        hr.prepare([{"path": "a.txt", "wieght": 1}])
