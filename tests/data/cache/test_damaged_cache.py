"""Damaged, foreign and unfinished caches: refused with the file and the place, and mended by the next start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.data.cache.open import open_or_create
from headrace.data.corpus.sources import as_sources
from tests.conftest import make_text

Command = Callable[..., tuple[int, str, str]]


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


def test_unfinished_cache_is_refused_and_finished_by_the_next_start(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text to be tokenised")
    open_or_create(as_sources(tmp_path / "a.txt"), "byte", tmp_path / "cache")
    code, _, err = command("inspect", tmp_path / "cache")
    assert code == 1
    assert "this cache is not finished" in err
    with pytest.raises(hr.HeadraceError, match="not finished"):
        hr.Loader(tmp_path / "cache", 1, 4)
    assert command("prepare", tmp_path / "a.txt", "--tokenizer", "byte", "--out", tmp_path / "cache")[0] == 0
