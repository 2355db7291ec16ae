"""The token cache: a corpus as sealed shards and a manifest; complete, or being filled while it is used."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data.cache.manifest import MANIFEST, PARTIAL, Entry, Manifest, is_manifest, read_manifest
from headrace.data.cache.shards import PartInfo, ShardFolder, ShardInfo, TokenArray
from headrace.data.corpus.layout import Layout
from headrace.data.corpus.segments import Segment, corpus_hash
from headrace.data.corpus.sources import Source
from headrace.data.selection.reasons import dropped_counts, without_dropped
from headrace.data.selection.text import SelectedText
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.errors import CacheError
from headrace.files import digest, write_atomically, write_checked_json


class Cache:
    """Tokens of a corpus on disk.

    >>> cache = Cache.open("cache")                                                  # doctest: +SKIP
    >>> cache.num_tokens, cache.num_documents                                        # doctest: +SKIP
    """

    has_text = True
    """Whether the sources are the text that the tokens came from."""

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        sources: Sequence[Source],
        segments: Sequence[Segment],
        entries: Sequence[Entry | None],
    ) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.sources = list(sources)
        self.segments = list(segments)
        self.dtype = tokenizer.dtype
        self.shards = ShardFolder(path, self.dtype)
        self.corpus_hash = corpus_hash(segments)
        self._entries = list(entries)
        self._num_missing = sum(entry is None for entry in self._entries)
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self.retired: list[str] = []
        """Shards that only the previous version of the corpus needed, or builds since then that never finished."""
        self.layout: Layout | None = None
        """How the list of files was divided into segments; None where all files are on this disk."""
        self.skipped: Counter[str] = Counter()
        """Number of files left out of the corpus, by reason; empty for a cache that was opened by its manifest."""
        self.text: SelectedText | None = None
        """The text that is to be tokenised; None for a cache that was opened by its manifest."""
        self.selection: dict[str, str | float] = {}
        """What was selected from the corpus: `deduplicate`, `near_threshold`, `keep`; empty: everything."""
        self.duplicates: dict[str, int] | None = None
        """How many `documents` and `bytes` repeat earlier documents exactly, or did before they were dropped; None:
        not counted, because the cache is not finished or is of an earlier version."""
        self._wanted: list[int] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the path: another process maps the same files."""
        return Cache.open, (self.path,)

    @staticmethod
    def is_cache(path: Path) -> bool:
        """Check whether a folder holds a cache, finished or not."""
        return is_manifest(path / MANIFEST) or is_manifest(path / PARTIAL)

    @classmethod
    def open(cls, path: str | Path) -> Cache:
        """Open a finished cache. Reads the manifest and the tokenizer, nothing else."""
        path = Path(path)
        if not (path / MANIFEST).exists():
            if (path / PARTIAL).exists():
                raise CacheError(f"{path}: this cache is not finished. Run the command that began it again.")
            raise CacheError(f"{path}: not a token cache (no {MANIFEST}). Make one: headrace prepare TEXT --out {path}")
        return cls.load(path, MANIFEST)

    @classmethod
    def load(cls, path: Path, name: str) -> Cache:
        """Open a cache by its manifest, or by the partial one of an unfinished build."""
        manifest = read_manifest(path, name)
        cache = cls(path, manifest.tokenizer, manifest.sources, manifest.segments, manifest.entries)
        cache.shards.refuse_links()
        cache.retired, cache.layout = manifest.retired, manifest.layout
        cache.selection, cache.duplicates = manifest.selection, manifest.duplicates
        return cache

    def save(self, name: str) -> None:
        """Write the manifest (or, while entries are missing, the partial one)."""
        with self._changed:
            entries = list(self._entries)
        facts = (self.retired, self.selection, self.duplicates, self.layout)
        manifest = Manifest(self.tokenizer, self.sources, self.segments, entries, *facts)
        with self.shards.scratch() as folder:
            write_checked_json(self.path / name, manifest.to_json(), folder / name)

    def save_tokenizer(self) -> None:
        """Write the tokenizer beside the manifest."""
        with self.shards.scratch() as folder:
            write_atomically(self.path / "tokenizer.json", self.tokenizer.json.encode(), folder / "tokenizer.json")

    def content_hash(self, segments: Iterable[int]) -> str:
        """Hash the text of some segments, independently of where it lies on the disk."""
        return digest(*(shard.key for segment in segments for shard in self.entry(segment).shards))[:16]

    def is_same(self, other: Cache) -> bool:
        """Check whether both are complete and describe the same corpus in the same way."""
        return (
            self.is_complete
            and other.is_complete
            and self.tokenizer.hash == other.tokenizer.hash
            and self.sources == other.sources
            and self.selection == other.selection
            and self.layout == other.layout
            and [s.fingerprint for s in self.segments] == [s.fingerprint for s in other.segments]
        )

    # What is known of each segment

    @property
    def is_complete(self) -> bool:
        return self._num_missing == 0

    def has(self, segment: int) -> bool:
        """Check whether a segment is tokenised, without waiting for it."""
        return self._entries[segment] is not None

    def entry(self, segment: int) -> Entry:
        """Return what a segment holds; wait for the builder if need be."""
        entry = self._entries[segment]
        if entry is None:
            self.require([segment])
            entry = self._entries[segment]
            assert entry is not None
        return entry

    def require(self, segments: Iterable[int]) -> None:
        """Wait until these segments are tokenised, and let the builder know that somebody waits for them."""
        missing = [segment for segment in segments if self._entries[segment] is None]
        if not missing:
            return
        with self._changed:
            self._wanted = missing + [segment for segment in self._wanted if segment not in set(missing)]
            while any(self._entries[segment] is None for segment in missing):
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    def wanted(self) -> list[int]:
        """Return the segments that somebody waits for, the most urgent first; the builder asks."""
        with self._changed:
            self._wanted = [segment for segment in self._wanted if self._entries[segment] is None]
            return self._wanted

    def put(self, segment: int, entry: Entry) -> None:
        """Take in a segment that the builder has finished."""
        with self._changed:
            self._num_missing -= self._entries[segment] is None
            self._entries[segment] = entry
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Note that the builder will finish nothing more; whoever waits gets the reason as an error."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    # Tokens

    def tokens(self, segment: int, start: int, stop: int) -> Iterator[TokenArray]:
        """Yield the tokens [start, stop) of a segment as views of its mapped shards, in order."""
        for shard in self.entry(segment).shards:
            if start < shard.num_tokens and stop > 0:
                yield self.shards.tokens(shard)[max(start, 0) : stop]
            start -= shard.num_tokens
            stop -= shard.num_tokens

    def document_ends(self, segment: int) -> npt.NDArray[np.int64]:
        """Return where documents end in a segment, as token offsets within it."""
        ends, before = [np.zeros(0, dtype=np.int64)], 0
        for shard in self.entry(segment).shards:
            ends.append(self.shards.ends(shard) + before)
            before += shard.num_tokens
        return np.concatenate(ends)

    def parts(self, segment: int) -> list[PartInfo]:
        """Return the files of a segment with their shares of its documents and tokens, in order."""
        return [part for shard in self.entry(segment).shards for part in self.shards.parts(shard.key)]

    # The whole

    @property
    def num_tokens(self) -> int:
        return sum(self.entry(index).num_tokens for index in range(len(self.segments)))

    @property
    def num_documents(self) -> int:
        return sum(self.entry(index).num_documents for index in range(len(self.segments)))

    @property
    def num_bytes(self) -> int:
        """Raw size of the corpus (an estimate for compressed files)."""
        return sum(segment.nbytes for segment in self.segments)

    @property
    def noticed(self) -> Counter[str]:
        """Counts of what was odd in the corpus: replaced bytes, skipped lines, empty documents, …"""
        return without_dropped(self._counted())

    @property
    def dropped(self) -> dict[str, dict[str, int]]:
        """What was left out when the cache was made: for each reason, the number of `documents` and of `bytes`."""
        return dropped_counts(self._counted())

    def _counted(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for index in range(len(self.segments)):
            total += self.entry(index).noticed
        return total

    def check_unchanged(self) -> None:
        """Do nothing: sealed shards never change. Caches of files that may change override this to refuse them."""

    def unique_shards(self) -> dict[str, ShardInfo]:
        """Return every shard once, by its key: equal chunks of text share one."""
        return {shard.key: shard for entry in self._entries if entry for shard in entry.shards}

    def verify(self) -> list[str]:
        """Check every byte of every shard; return a sentence for each problem."""
        return [problem for shard in self.unique_shards().values() for problem in self.shards.verify(shard)]
