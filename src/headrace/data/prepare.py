"""Prepare a corpus: raw text on disk becomes a sealed token cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.data.cache.build import Builder, Progress, check_memory_budget
from headrace.data.cache.manifest import Cache
from headrace.data.cache.open import default_cache_dir, plan_cache
from headrace.data.corpus.segments import share_of_segments
from headrace.data.corpus.sources import as_sources
from headrace.data.loader import DEFAULT_TOKENIZER
from headrace.data.tokens.special_tokens import SpecialTokensInText
from headrace.data.tokens.tokenizers import Tokenizer

REPORT_SECONDS = 0.1


def prepare(
    paths: Any,
    tokenizer: str | Tokenizer = DEFAULT_TOKENIZER,
    out: str | os.PathLike[str] | None = None,
    *,
    special_tokens_in_text: SpecialTokensInText = "ordinary",
    num_workers: int | None = None,
    memory_budget: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Cache:
    """Tokenise a corpus into a cache, as fast as the machine can, in bounded memory.

    >>> cache = prepare(["corpus/*.jsonl.zst"], tokenizer="bpe:16000", out="cache")   # doctest: +SKIP

    Running it again does only what is new: a finished corpus costs nothing, a killed build goes on where it was, one
    more file is one file's work. Special tokens that are spelled out in the text, such as <|endoftext|>, are ordinary
    text, or with `special_tokens_in_text="special"` the special tokens themselves.
    """
    check_memory_budget(memory_budget)
    cache = plan(paths, tokenizer, out, special_tokens_in_text)
    with Builder(cache, num_workers, memory_budget) as builder:
        if on_progress is not None:
            on_progress(builder.progress)
        while not builder.wait(timeout=REPORT_SECONDS):
            if on_progress is not None:
                on_progress(builder.progress)
        if on_progress is not None:
            on_progress(builder.progress)
    finished = Cache.open(cache.path)
    finished.skipped = cache.skipped
    return finished


def plan(
    paths: Any,
    tokenizer: str | Tokenizer,
    out: str | os.PathLike[str] | None,
    special_tokens_in_text: SpecialTokensInText = "ordinary",
) -> Cache:
    """What is to be done, and with which tokenizer, which is learned and kept here."""
    sources = as_sources(paths)
    path = default_cache_dir(sources, tokenizer, special_tokens_in_text) if out is None else Path(out)
    return plan_cache(sources, tokenizer, path, special_tokens_in_text)


def prepare_share(
    paths: Any,
    tokenizer: str | Tokenizer,
    out: str | os.PathLike[str] | None,
    number: int,
    num_shares: int,
    special_tokens_in_text: SpecialTokensInText = "ordinary",
) -> None:
    """Tokenise one of so many shares of a corpus, at the same time as others do theirs in the same folder.

    `prepare` then finds all of it done, and seals it.
    """
    cache = plan(paths, tokenizer, out, special_tokens_in_text)
    with Builder(cache, only=share_of_segments(cache.segments, number, num_shares)) as builder:
        builder.wait()
