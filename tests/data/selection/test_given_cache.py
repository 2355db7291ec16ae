"""Loaders of a finished cache: its documents are selected already, so another selection is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.data.selection.test_duplicates import write_lines


def is_long(text: str) -> bool:
    return len(text) > 3


@pytest.mark.parametrize("built", [{}, {"deduplicate": "exact"}])
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"deduplicate": "near"}, "Leave deduplicate and near_threshold out"),
        ({"keep": is_long, "keep_name": "long"}, "Leave keep out"),
        ({"deduplicate": "exact", "keep": is_long}, "Leave deduplicate and keep out"),
    ],
)
def test_another_selection_is_refused(tmp_path: Path, built: Any, asked: Any, says: str) -> None:
    write_lines(tmp_path / "a.jsonl", ["one", "three", "seven", "three"])
    cache = hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", **built)
    for given in (cache, cache.path, str(cache.path)):
        with pytest.raises(hr.HeadraceError, match=f"selected when this cache was built.*{says}") as problem:
            hr.Loader(given, 1, 4, **asked)
        assert str(cache.path) in str(problem.value)


def test_the_same_selection_or_none_is_fine(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["one", "three", "seven", "three"])
    selection: Any = {"deduplicate": "near", "near_threshold": 0.7, "keep": is_long}
    cache = hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", **selection)
    for given in (cache, str(cache.path)):
        for asked in ({}, selection):
            with hr.Loader(given, 1, 4, **asked) as loader:
                assert loader.cache.num_documents == 2
