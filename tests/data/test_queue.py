"""How many batches are held ready: what was asked for, within the bounds that were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UsageError
from tests.conftest import make_text


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"queue_capacity": 300}, 300),
        ({"prefetch_batches": 1000}, 1000),
        ({"prefetch_batches": 1000, "max_sequences_in_memory": 20}, 10),
    ],
)
def test_a_deep_queue_is_as_deep_as_asked(tmp_path: Path, options: dict[str, Any], limit: int) -> None:
    (tmp_path / "a.txt").write_text(make_text(3000))
    with hr.Loader(tmp_path / "a.txt", 2, 8, tokenizer="byte", cache_dir=tmp_path / "cache", **options) as loader:
        next(loader)
        assert loader.counters().queue_limit == limit


def test_a_queue_beyond_reason_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"prefetch_batches 1000000000: .* less than or equal to 65536"):
        hr.Loader(tmp_path, 2, 8, prefetch_batches=10**9)
