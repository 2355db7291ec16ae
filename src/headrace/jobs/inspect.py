"""Inspect: what the token cache of a corpus or of a run holds, and where its batches come from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.data.cache.cache import Cache
from headrace.data.loader import Loader
from headrace.errors import CacheError

if TYPE_CHECKING:
    from headrace.run.config import Config


def is_run(path: Path) -> bool:
    """Check whether a folder is that of a run, not of a token cache."""
    return (path / "config.json").is_file() and not Cache.is_cache(path)


def cache_of_run(path: Path) -> tuple[Cache, Config]:
    """Open the token cache of a run; return it with the configuration of the run."""
    from headrace.run.directory import read_config, read_json  # imports PyTorch, which a cache does not need

    config, corpus = read_config(path), read_json(path / "corpus.json")
    if config is None or not isinstance(corpus, dict) or not isinstance(corpus.get("cache"), str):
        raise CacheError(
            f"{path}: this run does not say where its tokens are (corpus.json is written when all text is tokenised)."
            " Name the folder of the cache instead."
        )
    cache = Cache.open(corpus["cache"])
    if cache.num_tokens != corpus.get("tokens"):
        raise CacheError(
            f"{cache.path}: holds other text now than when {path} was trained on it. To see what it holds now: headrace"
            f" inspect {cache.path}"
        )
    return cache, config


def options_of(config: Config) -> dict[str, Any]:
    """Return the arguments of the loader that gave a run its batches."""
    from headrace.run.corpus import training_options  # imports PyTorch

    return training_options(config)


def explain_step(cache: Cache, step: int, **loader_options: Any) -> list[dict[str, Any]]:
    """Return where each row of a step comes from."""
    with Loader(cache, **{**loader_options, "prefetch_batches": 0, "queue_capacity": None}) as loader:
        return [asdict(trace) for trace in loader.explain(step)]
