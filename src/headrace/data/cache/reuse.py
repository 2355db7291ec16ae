"""Tokens of an earlier version of a corpus: which can be used again, and which can be removed."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.data.cache.cache import Cache
from headrace.data.cache.manifest import MANIFEST
from headrace.data.cache.shards import ShardInfo, TokenArray
from headrace.data.corpus.segments import Segment


@dataclass(frozen=True)
class KnownTokens:
    """The tokens of a file from an earlier build."""

    tokens: TokenArray
    ends: npt.NDArray[np.int64]
    noticed: Counter[str]


class Reuse:
    """Tokens of small files from groups of an earlier version of the corpus, found by the files' content."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._index: dict[str, tuple[ShardInfo, int]] | None = None
        try:
            self._old: Cache | None = Cache.load(cache.path, MANIFEST)
        except FileNotFoundError:
            self._old = None

    def find(self, segment: Segment, part_digest: str) -> KnownTokens | None:
        """Return the tokens of a file of a group, by the hash of its content, if an earlier build has them."""
        if not segment.is_group or self._old is None or self._old.tokenizer.hash != self._cache.tokenizer.hash:
            return None
        with self._lock:
            if self._index is None:
                self._index = self._read_index()
        found = self._index.get(part_digest)
        return None if found is None else self._tokens(*found)

    def _read_index(self) -> dict[str, tuple[ShardInfo, int]]:
        assert self._old is not None
        current = self._cache.unique_shards()
        index = {}
        for number, segment in enumerate(self._old.segments):
            for shard in self._old.entry(number).shards if segment.is_group else ():
                if shard.key not in current and self._cache.shards.find(shard.key) is not None:
                    for place, part in enumerate(self._cache.shards.parts(shard.key)):
                        if not part.is_open:
                            index[part.digest] = (shard, place)
        return index

    def _tokens(self, shard: ShardInfo, number: int) -> KnownTokens:
        parts = self._cache.shards.parts(shard.key)
        start = sum(part.num_tokens for part in parts[:number])
        stop = start + parts[number].num_tokens
        ends = self._cache.shards.ends(shard)
        inside = ends[np.searchsorted(ends, start, "right") : np.searchsorted(ends, stop, "right")]
        tokens = self._cache.shards.tokens(shard)[start:stop] if stop > start else np.zeros(0, self._cache.shards.dtype)
        return KnownTokens(tokens, inside - start, Counter(parts[number].noticed))

    def retire(self) -> list[str]:
        """Record the shards that only earlier builds need, which may be in use; return older ones to remove.

        Earlier builds are the previous version of the corpus, and those since then that never finished.
        """
        current = self._cache.unique_shards().keys()
        before = self._old.unique_shards().keys() if self._old else set()
        older = set(self._old.retired) - current - before if self._old else set()
        self._cache.retired = sorted((before | set(self._cache.retired)) - current - older)
        return sorted(older)
