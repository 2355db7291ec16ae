"""Files made to do harm: names that lead elsewhere, links, and caches that are not as headrace writes them.

Checksums prove nothing here: whoever makes such a file makes its checksum too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import CacheError
from headrace.files import read_checked_json, write_checked_json
from tests.conftest import make_text

Command = Callable[..., tuple[int, str, str]]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(make_text(3000))
    return hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "home" / "cache").path


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file outside the cache that has the name of a seal."""
    file = tmp_path / "victim.json"
    file.write_text("precious")
    (tmp_path / "victim.tokens").write_text("precious")
    (tmp_path / "victim.ends").write_text("precious")
    return file


def change(file: Path, how: Change) -> None:
    value = read_checked_json(file)
    how(value)
    write_checked_json(file, value)


def name_a_shard_elsewhere(manifest: dict[str, Any]) -> None:
    manifest["segments"][0][-2][0][0] = "../../../victim"


def retire_elsewhere(manifest: dict[str, Any]) -> None:
    manifest["retired"] = ["../../../victim"]


@pytest.mark.parametrize("how", [name_a_shard_elsewhere, retire_elsewhere])
def test_a_manifest_removes_nothing_outside_its_cache(
    command: Command, cache: Path, victim: Path, tmp_path: Path, how: Change
) -> None:
    change(cache / "manifest.json", how)
    assert command("inspect", cache, "--verify")[0] == 1
    (tmp_path / "a.txt").write_text(make_text(4000, seed=1))
    code, _, err = command("prepare", tmp_path / "a.txt", "--tokenizer", "byte", "--out", cache)
    assert code == 1
    assert "'../../../victim' is not the name of a shard" in err
    assert "Traceback" not in err
    assert sorted(tmp_path.glob("victim.*")) == [
        victim.with_suffix(".ends"),
        victim,
        victim.with_suffix(".tokens"),
    ]


@pytest.mark.parametrize("folder", ["shards", "tmp", "documents"])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_cache_with_links_to_elsewhere_is_refused(
    command: Command, cache: Path, tmp_path: Path, folder: str, is_new: bool
) -> None:
    outside = tmp_path / "outside"
    if is_new:
        outside.mkdir()
        cache = tmp_path / "new"
        cache.mkdir()
    else:
        (cache / folder).rename(outside)
    (cache / folder).symlink_to(outside)
    before = sorted(outside.iterdir())
    (tmp_path / "a.txt").write_text(make_text(4000, seed=1))
    code, _, err = command("prepare", tmp_path / "a.txt", "--tokenizer", "byte", "--out", cache)
    assert code == 1
    assert f"{cache / folder}: is a link" in err
    if not is_new:
        assert command("inspect", cache, "--verify")[0] == 1
    assert sorted(outside.iterdir()) == before


def test_a_cache_that_is_itself_a_link_works(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(cache)
    assert hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "link").num_documents == 1


@pytest.mark.parametrize(
    "how",
    [
        lambda m: m.pop("segments"),
        lambda m: m.pop("tokenizer"),
        lambda m: m["tokenizer"].pop("vocab_size"),
        lambda m: m.update(segments=3),
        lambda m: m["segments"][0].pop(),
        lambda m: m["segments"][0].__setitem__(-2, None),  # a segment that nobody will ever build
        lambda m: m["segments"][0].__setitem__(1, "socket"),
        lambda m: m["segments"][0][-2][0].__setitem__(1, "many"),
        lambda m: m["segments"][0][-2][0].__setitem__(1, -5),
        lambda m: m["segments"][0][-2][0].__setitem__(3, []),
        lambda m: m["segments"][0][-2][0].__setitem__(3, ["x"]),
        lambda m: m.update(sources=[{"path": 3}]),
        lambda m: m.update(retired=None),
    ],
)
def test_a_manifest_that_headrace_did_not_write_is_one_message(command: Command, cache: Path, how: Change) -> None:
    change(cache / "manifest.json", how)
    code, _, err = command("inspect", cache, "--verify")
    assert code == 1
    assert str(cache) in err
    assert "Traceback" not in err


@pytest.mark.parametrize("value", [[10**6], [2**63]])
def test_document_ends_beyond_the_tokens_are_damage(cache: Path, value: list[int]) -> None:

    raw = np.array(value, "<u8").tobytes()
    next(cache.glob("shards/*.ends")).write_bytes(raw)
    change(cache / "manifest.json", lambda m: m["segments"][0][-2][0].__setitem__(4, [zlib.crc32(raw)]))
    with pytest.raises(CacheError, match="document ends"):
        hr.Cache.open(cache).document_ends(0)


def test_a_seal_of_another_shard_is_not_believed(cache: Path, tmp_path: Path) -> None:
    """A seal names its shard twice: by its file and inside it."""
    seal = next(cache.glob("shards/*.json"))
    change(seal, lambda value: value["shard"].__setitem__(0, "../../../victim"))
    assert hr.Cache.open(cache).shards.find(seal.stem) is None
    again = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=cache)
    assert again.verify() == []
    assert read_checked_json(seal)["shard"][0] == seal.stem


@pytest.mark.parametrize("content", [b"\xff\xfe{", b"[" * 100_000, b"{}", b"[]", b'{"checksum": 1}', b""])
@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json"])
def test_files_of_a_cache_that_are_something_else(command: Command, cache: Path, name: str, content: bytes) -> None:
    (cache / name).write_bytes(content)
    code, _, err = command("inspect", cache)
    assert code == 1
    assert str(cache / name) in err
    assert "Traceback" not in err
