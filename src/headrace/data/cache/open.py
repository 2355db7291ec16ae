"""The cache of a corpus, opened or created: what an earlier build left is used again."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.activity import Activity, ignore
from headrace.data.cache.cache import Cache
from headrace.data.cache.manifest import MANIFEST, PARTIAL, Entry
from headrace.data.cache.shards import ShardFolder
from headrace.data.corpus.cuts import split_document
from headrace.data.corpus.datasets.objects import SCHEME
from headrace.data.corpus.layout import Layout, list_remote
from headrace.data.corpus.readers import Reader
from headrace.data.corpus.remote.addresses import is_remote
from headrace.data.corpus.segments import Segment, divide_corpus
from headrace.data.corpus.sources import Source
from headrace.data.selection.folder import FOLDER as DOCUMENTS
from headrace.data.selection.folder import OWN_NAME
from headrace.data.selection.options import EVERYTHING, Selection
from headrace.data.selection.text import select_text
from headrace.data.tokens.special_tokens import SpecialTokensInText, check_special_tokens_in_text
from headrace.data.tokens.tokenizers import Tokenizer, check_spec, load_tokenizer
from headrace.errors import CacheError
from headrace.files import canonical_json, digest, user_cache

SAMPLE_BYTES = 8 << 20
SAMPLE_PLACES = 64
VALIDATION = "validation"  # a folder within a cache, for the tokens of separate validation text


def open_or_create(
    sources: Sequence[Source],
    tokenizer: str | Tokenizer,
    path: Path,
    special_tokens_in_text: SpecialTokensInText = "ordinary",
    activity: Activity = ignore,
    selection: Selection = EVERYTHING,
    num_workers: int | None = None,
    memory_budget: int | None = None,
) -> Cache:
    """Open the cache of a corpus in a folder, with what an earlier build left there, or create an empty one.

    `special_tokens_in_text` is for a tokenizer given as a spec; a `Tokenizer` has its own. If the selection drops
    duplicates, all text that is new is read here, by `num_workers` within the memory budget.
    """
    check_special_tokens_in_text(special_tokens_in_text)
    if isinstance(tokenizer, str):
        check_spec(tokenizer)
    selection.check(sources)
    activity("reading the corpus")
    skipped: Counter[str] = Counter()
    previous = _previous(path)
    segments, layout = _divide(sources, skipped, previous)
    tokenizer = _choose_tokenizer(tokenizer, special_tokens_in_text, previous, sources, segments, path, activity)
    folder = ShardFolder(path, tokenizer.dtype)
    if selection.drops_duplicates:
        folder.make()
    text = select_text(sources, segments, selection, path, folder.scratch, activity, num_workers, memory_budget)
    segments = text.segments
    known = {} if previous is None else {s.fingerprint: i for i, s in enumerate(previous.segments)}
    entries = []
    for segment in segments:
        index = known.get(segment.fingerprint)
        entries.append(None if index is None or previous is None else _usable_entry(previous, index, tokenizer))
    cache = Cache(path, tokenizer, sources, segments, entries)
    cache.skipped, cache.layout = skipped, layout
    cache.text, cache.selection = text, selection.facts
    cache.duplicates = None if previous is None else previous.duplicates
    cache.retired = [] if previous is None else previous.retired
    if previous is None or not previous.is_same(cache):
        if previous is not None:  # what was made for it goes once another version is sealed, finished or not
            cache.retired = sorted({*previous.retired, *previous.unique_shards()})
        cache.shards.make()
        cache.save_tokenizer()
        cache.save(PARTIAL)
    return cache


def default_cache_dir(
    sources: Sequence[Source],
    tokenizer: str | Tokenizer,
    special_tokens_in_text: SpecialTokensInText = "ordinary",
    selection: Selection = EVERYTHING,
) -> Path:
    """Return the default cache folder of a corpus: one in the user's cache, named by a hash of the corpus."""
    spec = tokenizer if isinstance(tokenizer, str) else tokenizer.hash
    places = [[_place(path) for path in source.paths] for source in sources]
    reading = [source.reading_hash for source in sources]
    options: list[Any] = [] if special_tokens_in_text == "ordinary" else [special_tokens_in_text]
    selected = [selection.facts, *(source.filters for source in sources)]
    options += [selected] if any(selected) else []
    return user_cache() / digest(canonical_json([places, reading, spec, *options]))[:16]


def _place(path: str) -> str:
    """Return where a source lies, whatever the current folder is; a dataset's name and an address say all."""
    return path if path.startswith(SCHEME) or is_remote(path) else os.path.abspath(path)


def _divide(
    sources: Sequence[Source], skipped: Counter[str], previous: Cache | None
) -> tuple[list[Segment], Layout | None]:
    """Return the segments of a corpus and, if some files are remote, how these were divided.

    The segments of a list that an earlier build has divided are taken from there: that needs no request but for the
    list.
    """
    listing = list_remote(sources, skipped)
    if listing is None:
        return divide_corpus(sources, skipped), None
    if previous is not None and previous.layout is not None:
        known = listing.attach(previous.segments, previous.layout)
        if known is not None:
            skipped.update(previous.layout.skipped)
            return known, previous.layout
    left_out: Counter[str] = Counter()
    segments = divide_corpus(sources, left_out, listed=listing.files)
    skipped.update(left_out)
    return segments, listing.describe(segments, left_out)


def _previous(path: Path) -> Cache | None:
    """Open what an earlier build left in a folder; None if the folder is empty or not there."""
    # The partial manifest comes first: it is newer. The manifest is tried again after it, and both once more, because
    # another builder may be finishing at this moment.
    for name in (PARTIAL, MANIFEST, PARTIAL, MANIFEST):
        try:
            return Cache.load(path, name)
        except (FileNotFoundError, NotADirectoryError):
            continue
    if path.exists() and not path.is_dir():
        raise CacheError(f"{path}: is a file; a cache is a folder. Choose another: data.cache_dir=FOLDER")
    if path.is_dir() and not _holds_only_what_a_build_left(path):
        raise CacheError(
            f"{path}: this folder holds something other than a token cache. Choose another: data.cache_dir=FOLDER"
        )
    return None


def _holds_only_what_a_build_left(path: Path) -> bool:
    """Return whether a build that was killed before its first manifest, or none, can have left all that is there.

    A cache removes what it does not need from its folders, so these must not be folders of somebody else.
    """
    return all(map(_is_left_by_a_build, path.iterdir()))


def _is_left_by_a_build(path: Path) -> bool:
    if path.name in ("shards", "tmp", DOCUMENTS):
        return path.is_dir() and all(map(OWN_NAME.fullmatch, os.listdir(path)))  # links are refused later, by name
    if path.name == VALIDATION:
        return path.is_dir() and (Cache.is_cache(path) or _holds_only_what_a_build_left(path))
    return path.name in ("tokenizer.json", MANIFEST, PARTIAL) or path.name.endswith(".tmp")


def _usable_entry(previous: Cache, index: int, tokenizer: Tokenizer) -> Entry | None:
    """Return the entry of a segment from an earlier build, if its shards are there and right for this tokenizer."""
    if not previous.has(index):
        return None
    entry = previous.entry(index)
    found = [previous.shards.find(shard.key) for shard in entry.shards]
    if [info[0] if info else None for info in found] != list(entry.shards):
        return None
    # Text without special tokens gives the same tokens, whichever way those are treated.
    is_same = previous.tokenizer.hash == tokenizer.hash or not _has_special_tokens(previous, entry)
    return entry if is_same else None


def _has_special_tokens(cache: Cache, entry: Entry) -> bool:
    """Check whether special tokens stand inside documents, and not only at their ends. Reads all tokens."""
    is_special = np.zeros(cache.tokenizer.vocab_size, dtype=bool)
    is_special[cache.tokenizer.special_ids_of_text] = True
    return any(is_special[cache.shards.tokens(shard)].sum() != shard.num_documents for shard in entry.shards)


def _choose_tokenizer(
    asked: str | Tokenizer,
    special_tokens_in_text: SpecialTokensInText,
    previous: Cache | None,
    sources: Sequence[Source],
    segments: Sequence[Segment],
    path: Path,
    activity: Activity,
) -> Tokenizer:
    spec = asked if isinstance(asked, str) else asked.spec
    is_learned = spec in ("char", "byte") or spec.startswith("bpe:")
    if not isinstance(asked, str):
        tokenizer = asked
    elif previous is not None and previous.tokenizer.spec == spec and is_learned:
        # A corpus that has grown keeps the tokenizer that it began with.
        tokenizer = replace(previous.tokenizer, special_tokens_in_text=special_tokens_in_text)
    else:
        activity(f"{'training' if is_learned else 'loading'} the tokenizer {spec}")
        tokenizer = load_tokenizer(asked, lambda: sample_documents(sources, segments), special_tokens_in_text)
    if previous is not None and previous.tokenizer.hash != tokenizer.hash:
        _check_successor(previous.tokenizer, tokenizer, path)
    return tokenizer


def _check_successor(before: Tokenizer, now: Tokenizer, path: Path) -> None:
    """Refuse a tokenizer whose tokens would not agree with those that are in the cache already."""
    remedy = "Delete it, or choose another folder: data.cache_dir=FOLDER"
    if replace(before, special_tokens_in_text=now.special_tokens_in_text).hash != now.hash:
        raise CacheError(
            f"{path}: this cache was built with the tokenizer {before.spec!r} ({before.hash[:8]}), not with"
            f" {now.spec!r} ({now.hash[:8]}). {remedy}"
        )
    if before.special_tokens_in_text == "ordinary":  # its tokens no longer show where text spelled a special token
        raise CacheError(
            f"{path}: this cache was built with special_tokens_in_text=ordinary, not with"
            f" {now.special_tokens_in_text}. {remedy}"
        )


def sample_documents(
    sources: Sequence[Source],
    segments: Sequence[Segment],
    nbytes: int = SAMPLE_BYTES,
    num_places: int = SAMPLE_PLACES,
) -> Iterator[bytes]:
    """Yield some text from all over the corpus, the same every time; by default 8 MiB, which tokenizers learn from."""
    # Only the beginning of a compressed file can be reached quickly.
    reachable = [segment for segment in segments if not segment.needs_previous]
    chosen = reachable[:: max(1, len(reachable) // num_places)]
    share = nbytes // len(chosen)
    reader = Reader(sources)
    try:
        for segment in chosen:
            chunk = next(reader.chunks(segment.beginning(share)), None)
            if chunk is not None:
                # A chunk larger than its share is thinned out evenly, in whole pieces.
                every = max(1, round(chunk.nbytes / share))
                batches = (batch for part in chunk.parts for batch in part.documents(Counter()))
                documents = itertools.chain.from_iterable(batches)
                pieces = (piece for document in documents for piece in split_document(document))
                yield from itertools.islice(pieces, 0, None, every)
    finally:
        reader.close()
