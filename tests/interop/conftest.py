"""A small cache of several segments, which every neighbour reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from tests.conftest import make_text


@pytest.fixture
def cache(small_scale: None, tmp_path: Path) -> hr.Cache:
    text = tmp_path / "text.txt"
    text.write_text(make_text(60_000, seed=5))
    return hr.prepare([text], tokenizer="bpe:300", out=tmp_path / "cache")
