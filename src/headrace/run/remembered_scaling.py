"""What `headrace scale` measured for a configuration on this machine, kept for later runs and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.errors import CacheError
from headrace.files import canonical_json, digest, read_checked_json, user_cache, write_checked_json
from headrace.machine.contention import is_disturbed
from headrace.machine.hardware import find_hardware
from headrace.run.config import Config
from headrace.run.corpus import expected_vocabulary
from headrace.run.shapes import ENVIRONMENT, fits

FORMAT = 2
DEFAULT_VOCABULARY = 4096


def remember_scaling(config: Config, scaling: dict[str, Any], taken_percent: float | None) -> None:
    """Keep a measurement for `run.processes=auto` and reports, unless other programs disturbed it."""
    if is_disturbed(taken_percent):
        return
    path = _path(config)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_checked_json(path, scaling)
    except (OSError, CacheError):
        pass  # a home folder that cannot be written costs a measurement each time, nothing else


def remembered_scaling(config: Config) -> dict[str, Any] | None:
    """What was measured for this network and batch on this very machine, if anything: never measures."""
    try:
        known = read_checked_json(_path(config))
    except (OSError, CacheError):
        return None
    return known if known.get("format") == FORMAT and fits(known, ENVIRONMENT["scaling"]) else None


def _path(config: Config) -> Path:
    """Whatever changes how long an update takes is in the name."""
    model = {**config.model.model_dump(), "vocab_size": vocabulary_of(config), "context": 0}
    keys = (
        "batch_size",
        "max_length",
        "optimizer",
        "gradient_checkpointing",
        "micro_batch_size",
        "precision",
        "matmul",
    )
    training = {key: getattr(config.training, key) for key in keys}
    what = canonical_json({"model": model, "training": training, "sharding": config.run.sharding})
    return user_cache() / "scaling" / f"{digest(find_hardware().fingerprint, what)[:16]}.json"


def vocabulary_of(config: Config) -> int:
    """Return the size of the vocabulary, also where the tokenizer is not there yet."""
    return config.model.vocab_size or expected_vocabulary(config.data.tokenizer or f"bpe:{DEFAULT_VOCABULARY}")
