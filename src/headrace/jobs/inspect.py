"""Inspect: where the batches of a token cache come from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace.data.cache.cache import Cache
from headrace.data.loader import Loader


def explain_step(cache: Cache, step: int, **loader_options: Any) -> list[dict[str, Any]]:
    """Return where each row of a step comes from."""
    with Loader(cache, prefetch_batches=0, **loader_options) as loader:
        return [asdict(trace) for trace in loader.explain(step)]
