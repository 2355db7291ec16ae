"""Tune: measure what would make a run faster, and write the configuration that does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from headrace.errors import UsageError
from headrace.files import write_atomically
from headrace.instruments.ladder import (
    COMPILE_SECONDS,
    Ladder,
    Option,
    Tuning,
    other_result_options,
    same_result_options,
)
from headrace.run.config import Config
from headrace.run.corpus import complete_model, prepare_training
from headrace.run.start.keys import given_sections
from headrace.run.start.settle import settle_model

DEFAULT_MINUTES = 2.75
HEADER = "# Written by headrace tune"


def tune(config: Config, minutes: float = DEFAULT_MINUTES, on_option: Callable[[str], None] = lambda _: None) -> Tuning:
    """Try what could make this run faster. Tokenises the corpus first, if that is not done: training needs it too."""
    config = config.model_copy(deep=True)
    if config.run.processes != 1:
        raise UsageError(f"run.processes {config.run.processes}: tuning measures one process. Add run.processes=1.")
    beginning = settle_model(config)
    cache = prepare_training(config, on_option, beginning.tokenizer if beginning else None)
    complete_model(config, cache.tokenizer)
    began = time.perf_counter()
    with Ladder(config, 60 * minutes, on_option) as ladder:
        for group in same_result_options(ladder.config):
            ladder.climb(group)
        best_batch_size = ladder.grow_batch()
        for option in other_result_options(ladder.config):
            ladder.climb([option])
        if not ladder.config.training.compile:
            ladder.climb([Option({"training.compile": True}, start_seconds=COMPILE_SECONDS)])
    return ladder.result(best_batch_size, time.perf_counter() - began)


def check_may_write(out: Path) -> None:
    """Refuse to overwrite a file that this command did not write."""
    if not out.parent.is_dir() or out.is_dir():
        raise UsageError(f"{out}: no file can be written there. Choose another --out.")
    if out.exists() and not out.read_text(encoding="utf-8", errors="replace").startswith(HEADER):
        raise UsageError(f"{out}: exists, and was not written by headrace tune. Choose another --out.")


def write_tuned(out: Path, result: Tuning) -> None:
    """Write the given configuration with the changes that were taken."""
    values = {name: section for name, section in given_sections(result.tuned).items() if name != "run"}
    gain = f"{result.gain.percent:+.0f}% tokens/s" if result.gain.percent else "nothing was clearly faster"
    text = f"{HEADER}: {gain}.\n{yaml.safe_dump(values, sort_keys=False)}"
    write_atomically(out, text.encode())


def write_tuning(run: Path, result: Tuning) -> None:
    """Keep the result in the run directory, for its report."""
    write_atomically(run / "tune.json", json.dumps(result.record().model_dump(), indent=1).encode())
