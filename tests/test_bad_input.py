"""Bad input: one message naming the file and the place, an exit code, no traceback, and a next start that works."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
import time
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
    assert "3 invalid UTF-8 sequence(s), replaced" in said
    tokens = np.concatenate(list(hr.Cache.open(tmp_path / "cache").tokens(0, 0, 1 << 20)))
    assert bytes(tokens[:-1].astype(np.uint8)).decode() == "good �� bad � end"


def test_byte_order_mark(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbftext")
    code, said = prepare(tmp_path / "a.txt")
    assert code == 0
    assert "1 byte order mark(s), removed" in said
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
    assert "2 NUL byte(s), kept" in said
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
    assert "1 malformed line(s), skipped" in said
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


# Damaged caches


@pytest.fixture
def cache(tmp_path: Path) -> hr.Cache:
    (tmp_path / "a.txt").write_text(make_text(3_000_000))
    return hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")


def tokens_file(cache: hr.Cache) -> Path:
    return next(cache.shards.path.glob("*.tokens"))


def expect_damage(command: Command, cache: hr.Cache, complaint: str) -> None:
    """`inspect --verify` and a loader both refuse it, and `prepare` mends it."""
    code, _, err = command("inspect", cache.path, "--verify")
    assert code == 1
    assert complaint in err
    with (
        pytest.raises(hr.HeadraceError, match=complaint),
        hr.Loader(hr.Cache.open(cache.path), 8, 64) as loader,
    ):
        next(loader)
    assert command("prepare", cache.path.parent / "a.txt", "--tokenizer", "byte", "--out", cache.path)[0] == 0
    assert command("inspect", cache.path, "--verify")[0] == 0


def test_flipped_bit(command: Command, cache: hr.Cache) -> None:
    data = bytearray(tokens_file(cache).read_bytes())
    data[2_500_000] ^= 4
    tokens_file(cache).write_bytes(data)
    expect_damage(command, cache, "damaged between bytes 2,097,152 and 3,145,727")


def test_truncated_shard(command: Command, cache: hr.Cache) -> None:
    tokens_file(cache).write_bytes(tokens_file(cache).read_bytes()[:-2])
    expect_damage(command, cache, "truncated shard")


def test_missing_shard(command: Command, cache: hr.Cache) -> None:
    tokens_file(cache).unlink()
    expect_damage(command, cache, "missing shard")


def rewrite_manifest(cache: hr.Cache, **changes: object) -> None:
    from headrace.files import read_checked_json, write_checked_json

    path = cache.path / "manifest.json"
    write_checked_json(path, {**read_checked_json(path), **changes})


def test_newer_and_foreign_caches(command: Command, cache: hr.Cache) -> None:
    rewrite_manifest(cache, version=99)
    code, _, err = command("inspect", cache.path)
    assert code == 1
    assert "cache version 99; this headrace reads version 1" in err
    rewrite_manifest(cache, format="something else")
    assert "not a headrace cache" in command("inspect", cache.path)[2]
    (cache.path / "manifest.json").write_text("{}")
    assert "manifest.json: not a headrace file, or damaged" in command("inspect", cache.path)[2]
    code, _, err = command("inspect", cache.path.parent)
    assert code == 1
    assert "not a token cache (no manifest.json)" in err


def test_a_cache_is_not_text(command: Command, cache: hr.Cache) -> None:
    for arguments in (["train", cache.path], ["plan", cache.path], ["tune", cache.path]):
        code, _, err = command(*arguments)
        assert code == 2
        assert "a token cache, not text" in err
        assert f"data.cache_dir={cache.path}" in " ".join(err.split())


def test_damaged_manifest(command: Command, cache: hr.Cache) -> None:
    path = cache.path / "manifest.json"
    path.write_text(path.read_text().replace('"num_tokens":', '"num_tokens":1', 1))
    code, _, err = command("inspect", cache.path)
    assert code == 1
    assert "do not match its checksum" in err


def test_tokenizer_changed_under_a_cache(command: Command, cache: hr.Cache) -> None:
    code, _, err = command("prepare", cache.path.parent / "a.txt", "--tokenizer", "char", "--out", cache.path)
    assert code == 1
    assert "this cache was built with the tokenizer 'byte'" in err
    file = cache.path / "tokenizer.json"
    original = file.read_text()
    file.write_text(original.replace('"add_prefix_space":false', '"add_prefix_space":true', 1))
    code, _, err = command("inspect", cache.path)
    assert code == 1
    assert "the tokenizer is not the one" in err
    file.write_text(original)
    assert command("inspect", cache.path)[0] == 0


@pytest.mark.parametrize("packing", ["stream", "document"])
def test_sequence_length_longer_than_the_corpus(tmp_path: Path, packing: Any) -> None:
    (tmp_path / "a.txt").write_text("tiny")
    for source, options in (
        (hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache"), {}),
        (tmp_path / "a.txt", {"tokenizer": "byte", "cache_dir": tmp_path / "raw"}),
    ):
        with hr.Loader(source, 2, 5, packing=packing, **options) as loader:
            if packing == "stream":
                with pytest.raises(hr.HeadraceError, match=r"sequence length 5 is longer than .* \(5 tokens\)"):
                    next(loader)
            else:
                assert next(loader).num_tokens == 8  # packed documents may be shorter than a row
        with hr.Loader(source, 2, 4, packing=packing, **options) as loader:
            next(loader)


def test_unfinished_cache_is_refused_and_finished_by_the_next_start(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text to be tokenised")
    open_or_create(as_sources(tmp_path / "a.txt"), "byte", tmp_path / "cache")
    code, _, err = command("inspect", tmp_path / "cache")
    assert code == 1
    assert "this cache is not finished" in err
    with pytest.raises(hr.HeadraceError, match="not finished"):
        hr.Loader(tmp_path / "cache", 1, 4)
    assert command("prepare", tmp_path / "a.txt", "--tokenizer", "byte", "--out", tmp_path / "cache")[0] == 0


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


@pytest.mark.soak
def test_one_line_of_200_megabytes(tmp_path: Path) -> None:
    """With spaces and without: the pieces are bounded, and nothing is lost."""
    for name, block in (
        ("words.txt", make_text(1 << 20).replace("\n", " ").encode()),
        ("letters.txt", b"abcdefgh" * (1 << 17)),
    ):
        file = tmp_path / name
        with open(file, "wb") as stream:
            for _ in range(200_000_000 // len(block)):
                stream.write(block)
        size = file.stat().st_size
        cache = hr.prepare(
            [{"path": str(file), "document": "line"}], tokenizer="bpe:400", out=tmp_path / f"cache-{name}"
        )
        assert cache.num_documents == 1
        lengths = {i: len(cache.tokenizer.decode([i]).encode()) for i in range(1, cache.tokenizer.vocab_size)}
        table = np.zeros(cache.tokenizer.vocab_size, dtype=np.int64)
        # Single bytes of a longer character decode to U+FFFD, but are one byte each.
        table[list(lengths)] = [1 if "�" in cache.tokenizer.decode([i]) else lengths[i] for i in lengths]
        total = sum(
            int(table[tokens].sum())
            for segment in range(len(cache.segments))
            for tokens in cache.tokens(segment, 0, 1 << 40)
        )
        assert total == size if name == "letters.txt" else total > 0
        file.unlink()


@pytest.mark.soak
def test_killed_twenty_times_the_build_ends_with_the_bytes_of_a_clean_one(tmp_path: Path) -> None:
    """Twenty kills of one and the same build, each at a random moment after it has begun to write."""
    corpus = tmp_path / "corpus"
    (corpus / "small").mkdir(parents=True)
    block = make_text(4_000_000)
    for number in range(4):
        (corpus / f"{number}.txt").write_text("".join(f"{number}.{part} {block}" for part in range(25)))
    (corpus / "lines.jsonl.gz").write_bytes(
        gzip.compress("\n".join(json.dumps({"text": f"{n} {block[n:][:2000]}"}) for n in range(5000)).encode(), 1)
    )
    for number in range(500):
        (corpus / "small" / f"{number}.md").write_text(f"{number} {block[number:][:5000]}")
    arguments = [sys.executable, "-m", "headrace", "prepare", str(corpus), "--tokenizer", "bpe:400", "--out"]
    subprocess.run([*arguments, str(tmp_path / "clean")], check=True, capture_output=True)
    rng = random.Random(0)
    for kill in range(20):
        child = subprocess.Popen(
            [*arguments, str(tmp_path / "cache")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        before = set(tmp_path.glob("cache/tmp/*/tokens"))
        while set(tmp_path.glob("cache/tmp/*/tokens")) <= before:
            assert child.poll() is None, f"the build was over before kill {kill}: the corpus is too small"
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.15))
        assert child.poll() is None, f"the build was over before kill {kill}: the corpus is too small"
        child.kill()
        child.wait()
    assert not (tmp_path / "cache" / "manifest.json").exists()
    subprocess.run([*arguments, str(tmp_path / "cache")], check=True, capture_output=True)

    def contents(folder: Path) -> dict[str, bytes]:
        return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}

    assert contents(tmp_path / "cache") == contents(tmp_path / "clean")
