"""A cache that an earlier version wrote (0.1, November 2026) is read, and its shards are found again."""

from __future__ import annotations

import shutil
from pathlib import Path

import headrace as hr
from headrace.data.cache.build import Progress

BEFORE = Path(__file__).parent / "written_before"


def test_an_old_cache_is_read(tmp_path: Path) -> None:
    shutil.copytree(BEFORE / "cache", tmp_path / "cache")
    cache = hr.Cache.open(tmp_path / "cache")
    assert (cache.num_tokens, cache.num_documents, cache.corpus_hash) == (1012, 32, "ae8aeea2e678d117")
    assert cache.verify() == []
    assert [part.name for part in cache.parts(0)] == ["a.txt", "b.jsonl", "c.txt.gz"]
    with hr.Loader(cache, 4, 16, shuffle=False) as loader:
        assert loader.explain(0)[0].spans[0].text == "The mill wheel tu"


def test_text_of_an_old_cache_is_not_tokenised_again(tmp_path: Path) -> None:
    """Shards are named by what they were made from: every format is read, divided and hashed as it was."""
    for name in ("cache", "text"):
        shutil.copytree(BEFORE / name, tmp_path / name)
    seen: list[Progress] = []
    cache = hr.prepare({"path": str(tmp_path / "text")}, "byte", tmp_path / "cache", on_progress=seen.append)
    assert cache.corpus_hash == "ae8aeea2e678d117"
    assert seen[-1].tokenised_bytes == 0
