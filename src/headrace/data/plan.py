"""A cache planned: what an earlier build left is found again, and the tokenizer is chosen or learned."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.data.cache import MANIFEST, PARTIAL, Cache, Entry
from headrace.data.cuts import split_document
from headrace.data.readers import Reader
from headrace.data.segments import Segment, plan_segments
from headrace.data.sources import Source
from headrace.data.tokenizers import Tokenizer, check_spec, load_tokenizer
from headrace.errors import CacheError
from headrace.files import canonical_json, digest, user_cache

SAMPLE_BYTES = 8 << 20
SAMPLE_PLACES = 64


def plan_cache(sources: Sequence[Source], tokenizer: str | Tokenizer, path: Path) -> Cache:
    """A cache for a corpus in a folder. What an earlier build left there is found again."""
    if isinstance(tokenizer, str):
        check_spec(tokenizer)
    skipped: Counter[str] = Counter()
    segments = plan_segments(sources, skipped)
    previous = _previous(path)
    tokenizer = _choose_tokenizer(tokenizer, previous, sources, segments, path)
    known = {} if previous is None else {s.fingerprint: i for i, s in enumerate(previous.segments)}
    entries = []
    for segment in segments:
        index = known.get(segment.fingerprint)
        entries.append(None if index is None or previous is None else _still_there(previous, index))
    cache = Cache(path, tokenizer, sources, segments, entries)
    cache.skipped = skipped
    if previous is None or not previous.is_same(cache):
        cache.shards.make()
        cache.save_tokenizer()
        cache.save(PARTIAL)
    return cache


def default_cache_dir(sources: Sequence[Source], tokenizer: str | Tokenizer) -> Path:
    """Where the tokens of a corpus go when nobody says: a folder of the user's cache named after the corpus."""
    spec = tokenizer if isinstance(tokenizer, str) else tokenizer.hash
    places = [[os.path.abspath(path) for path in source.paths] for source in sources]
    reading = [source.reading_hash for source in sources]
    return user_cache() / digest(canonical_json([places, reading, spec]))[:16]


def _previous(path: Path) -> Cache | None:
    # The partial manifest comes first: it is newer. The manifest is tried again after it, and both once more, because
    # another builder may be finishing at this moment.
    for name in (PARTIAL, MANIFEST, PARTIAL, MANIFEST):
        try:
            return Cache.load(path, name)
        except (FileNotFoundError, NotADirectoryError):
            continue
    if path.exists() and not path.is_dir():
        raise CacheError(f"{path}: is a file; a cache is a folder. Choose another with --out.")
    ours = {"shards", "tmp", "tokenizer.json", MANIFEST, PARTIAL}
    if path.is_dir() and any(name not in ours and not name.endswith(".tmp") for name in os.listdir(path)):
        raise CacheError(f"{path}: this folder holds something else than a token cache. Choose another with --out.")
    return None


def _still_there(previous: Cache, index: int) -> Entry | None:
    if not previous.has(index):
        return None
    entry = previous.entry(index)
    found = [previous.shards.find(shard.key) for shard in entry.shards]
    return entry if [info[0] if info else None for info in found] == list(entry.shards) else None


def _choose_tokenizer(
    asked: str | Tokenizer, previous: Cache | None, sources: Sequence[Source], segments: Sequence[Segment], path: Path
) -> Tokenizer:
    spec = asked if isinstance(asked, str) else asked.spec
    if previous is not None and previous.tokenizer.spec == spec and isinstance(asked, str):
        learned = spec in ("char", "byte") or spec.startswith("bpe:")
        if learned:  # a corpus that has grown keeps the tokenizer that it began with
            return previous.tokenizer
    tokenizer = load_tokenizer(asked, lambda: sample_documents(sources, segments)) if isinstance(asked, str) else asked
    if previous is not None and previous.tokenizer.hash != tokenizer.hash:
        raise CacheError(
            f"{path}: this cache was built with the tokenizer {previous.tokenizer.spec!r}"
            f" ({previous.tokenizer.hash[:8]}), not with {spec!r} ({tokenizer.hash[:8]})."
            " Choose another folder with --out, or delete this one."
        )
    return tokenizer


def sample_documents(sources: Sequence[Source], segments: Sequence[Segment]) -> Iterator[bytes]:
    """Some 8 MiB of text from all over the corpus, the same every time: what tokenizers learn from."""
    # Of a compressed file only the beginning can be reached quickly.
    reachable = [segment for segment in segments if segment.kind != "stream" or segment.ordinal == 0]
    chosen = reachable[:: max(1, len(reachable) // SAMPLE_PLACES)]
    share = SAMPLE_BYTES // len(chosen)
    reader = Reader(sources)
    try:
        for segment in chosen:
            if segment.kind == "range" and segment.end - segment.begin > share:
                segment = replace(segment, end=segment.begin + share, is_last=False)
            chunk = next(reader.chunks(segment), None)
            if chunk is not None:
                # A chunk that is more than the share is thinned out evenly, in whole pieces.
                every = max(1, round(chunk.nbytes / share))
                batches = (batch for member in chunk.members for batch in member.documents(Counter()))
                documents = itertools.chain.from_iterable(batches)
                pieces = (piece for document in documents for piece in split_document(document))
                yield from itertools.islice(pieces, 0, None, every)
    finally:
        reader.close()
