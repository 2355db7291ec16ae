"""Text on disk becomes a token cache: all of it at once, one share of it, or while it is served."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.activity import Activity, ignore
from headrace.data.cache.build import Builder, Progress, check_memory_budget
from headrace.data.cache.cache import Cache
from headrace.data.cache.open import default_cache_dir, open_or_create
from headrace.data.config import LoaderOptions
from headrace.data.corpus.segments import share_of_segments
from headrace.data.corpus.sources import as_sources
from headrace.data.selection.keep import Keep
from headrace.data.selection.options import DEFAULT_THRESHOLD, EVERYTHING, Deduplicate, Selection
from headrace.data.tokens.special_tokens import SpecialTokensInText
from headrace.data.tokens.tokenizers import DEFAULT_TOKENIZER, Tokenizer
from headrace.errors import UsageError
from headrace.sizes import parse_size

REPORT_SECONDS = 0.1


def prepare(
    paths: Any,
    tokenizer: str | Tokenizer = DEFAULT_TOKENIZER,
    out: str | os.PathLike[str] | None = None,
    *,
    special_tokens_in_text: SpecialTokensInText = "ordinary",
    deduplicate: Deduplicate = "none",
    near_threshold: float = DEFAULT_THRESHOLD,
    keep: Callable[[str], object] | None = None,
    keep_name: str = "",
    num_workers: int | None = None,
    memory_budget: int | str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    activity: Activity = ignore,
) -> Cache:
    """Tokenise a corpus into a cache, as fast as the machine can, in bounded memory.

    >>> cache = prepare(["corpus/*.jsonl.zst"], tokenizer="bpe:16000", out="cache")   # doctest: +SKIP

    Running it again does only what is new: a finished corpus costs nothing, a killed build continues where it was, one
    more file is one file's work. Special tokens that are spelled out in the text, such as <|endoftext|>, are ordinary
    text, or with `special_tokens_in_text="special"` the special tokens themselves. `activity` is called with what
    begins: reading the corpus, training the tokenizer, tokenising.

    `deduplicate="exact"` drops documents that repeat an earlier one, "near" also those that share most of their text
    with one (`near_threshold` of their shingles). `keep` is a function that takes the text of a document and returns
    whether it is kept; a cache is used again only by the same function, told by its source code or by `keep_name`.
    """
    try:
        budget = parse_size(memory_budget)
    except ValueError as problem:
        raise UsageError(f"memory_budget: {problem}") from None
    check_memory_budget(budget)
    selection = as_selection(deduplicate, near_threshold, keep, keep_name)
    workers = (num_workers, budget)
    cache = open_cache(paths, tokenizer, out, special_tokens_in_text, activity, selection, *workers)
    activity("tokenising")
    with Builder(cache, num_workers, budget) as builder:
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


def open_cache(
    paths: Any,
    tokenizer: str | Tokenizer,
    out: str | os.PathLike[str] | None,
    special_tokens_in_text: SpecialTokensInText = "ordinary",
    activity: Activity = ignore,
    selection: Selection = EVERYTHING,
    num_workers: int | None = None,
    memory_budget: int | None = None,
) -> Cache:
    """Open the cache of a corpus, or create an empty one. A tokenizer that must be learned is learned here, and if
    duplicates are to be dropped, they are looked for."""
    sources = as_sources(paths)
    path = (
        default_cache_dir(sources, tokenizer, special_tokens_in_text, selection)
        if out is None
        else Path(out).expanduser()
    )
    workers = (num_workers, memory_budget)
    return open_or_create(sources, tokenizer, path, special_tokens_in_text, activity, selection, *workers)


def as_selection(
    deduplicate: Deduplicate, near_threshold: float, keep: Callable[[str], object] | None = None, keep_name: str = ""
) -> Selection:
    """Return what to select from a corpus, by the arguments of `prepare` and `Loader`."""
    if keep is None and keep_name:
        raise UsageError("keep_name names the function of keep=, which is not given")
    return Selection(deduplicate, near_threshold, None if keep is None else Keep(keep, keep_name))


def open_or_build(
    given: Any,
    tokenizer: str | Tokenizer,
    cache_dir: str | Path | None,
    options: LoaderOptions,
    activity: Activity = ignore,
    keep: Callable[[str], object] | None = None,
    keep_name: str = "",
) -> tuple[Cache, Builder | None]:
    """Return a finished cache; or the cache of the given text, and the builder that fills it while it is used."""
    selection = as_selection(options.deduplicate, options.near_threshold, keep, keep_name)
    if isinstance(given, (str, os.PathLike)) and Cache.is_cache(Path(given).expanduser()):
        given = Cache.open(Path(given).expanduser())
    if isinstance(given, Cache):
        _refuse_to_select_again(given, selection)
        return given, None
    check_memory_budget(options.memory_budget)
    special, budget = options.special_tokens_in_text, options.memory_budget
    cache = open_cache(given, tokenizer, cache_dir, special, activity, selection, memory_budget=budget)
    return cache, Builder(cache, max(options.num_workers, 1), budget, in_background=True)


def _refuse_to_select_again(cache: Cache, selection: Selection) -> None:
    """Raise an error if documents are to be selected from a cache in another way than when it was built."""
    wanted, found = selection.facts, cache.selection
    if not wanted or wanted == found:
        return
    names = sorted({name for name in {*wanted, *found} if wanted.get(name) != found.get(name)})
    built = ", ".join(f"{name}={value!r}" for name, value in found.items()) or "all of them were kept"
    raise UsageError(
        f"{', '.join(names)}: the documents of {cache.path} were selected when this cache was built ({built}). Leave"
        f" {' and '.join(sorted(wanted))} out, or give the text instead of its cache."
    )


def prepare_share(
    paths: Any,
    tokenizer: str | Tokenizer,
    out: str | os.PathLike[str] | None,
    number: int,
    num_shares: int,
    special_tokens_in_text: SpecialTokensInText = "ordinary",
    selection: Selection = EVERYTHING,
) -> None:
    """Tokenise one of `num_shares` shares of a corpus, at the same time as others do theirs in the same folder.

    `prepare` then finds all of it done, and seals it.
    """
    cache = open_cache(paths, tokenizer, out, special_tokens_in_text, selection=selection)
    with Builder(cache, only=share_of_segments(cache.segments, number, num_shares)) as builder:
        builder.wait()
