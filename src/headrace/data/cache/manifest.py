"""The token cache: a corpus as sealed shards and a manifest; complete, or being filled while it is used."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data.cache.shards import PartInfo, ShardFolder, ShardInfo, TokenArray, check_key
from headrace.data.corpus.segments import Kind, Segment, corpus_hash
from headrace.data.corpus.sources import Source
from headrace.data.tokens.tokenizer_json import read_tokenizer_file
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.errors import CacheError
from headrace.files import digest, read_checked_json, write_atomically, write_checked_json

FORMAT = "headrace-cache"
VERSION = 1
MANIFEST = "manifest.json"
PARTIAL = "partial.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A segment that has been tokenised."""

    shards: tuple[ShardInfo, ...]
    noticed: Counter[str] = field(default_factory=Counter)

    @property
    def num_tokens(self) -> int:
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def num_documents(self) -> int:
        return sum(shard.num_documents for shard in self.shards)


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
        """Shards that only the version before this one needed."""
        self.skipped: Counter[str] = Counter()
        """Files that were left out when the corpus was planned, by reason; unknown of a cache that was just opened."""
        self._wanted: list[int] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """A cache travels to another process as its path: the same files are mapped there."""
        return Cache.open, (self.path,)

    @staticmethod
    def is_cache(path: Path) -> bool:
        """Whether a folder holds a cache, finished or not."""
        marker = f'"format":"{FORMAT}"'.encode()
        return any(file.is_file() and marker in file.read_bytes() for file in (path / MANIFEST, path / PARTIAL))

    @classmethod
    def open(cls, path: str | Path) -> Cache:
        """Open a finished cache. Reads the manifest and the tokenizer, nothing else."""
        path = Path(path)
        if not (path / MANIFEST).exists():
            if (path / PARTIAL).exists():
                raise CacheError(f"{path}: this cache is not finished. Run what began it again.")
            raise CacheError(f"{path}: not a token cache (no {MANIFEST}). Make one: headrace prepare TEXT --out {path}")
        return cls.load(path, MANIFEST)

    @classmethod
    def load(cls, path: Path, name: str) -> Cache:
        """A cache from its manifest, or from the partial one of an unfinished build."""
        manifest = read_checked_json(path / name)
        _check_version(path / name, manifest)
        try:
            tokenizer = _read_tokenizer(path, manifest["tokenizer"])
            sources = [Source.model_validate(source) for source in manifest["sources"]]
            segments, entries = [], []
            for *facts, shards, noticed in manifest["segments"]:
                segments.append(_segment(facts, len(sources)))
                infos = None if shards is None else tuple(ShardInfo.from_json(shard) for shard in shards)
                entries.append(None if infos is None else Entry(infos, Counter(noticed)))
            for key in manifest["retired"]:
                check_key(key)
            if name == MANIFEST and None in entries:
                raise ValueError("a finished cache lacks segments")
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
            raise CacheError(
                f"{path / name}: not as headrace writes it ({problem}). Delete {path} and run `headrace prepare` again."
            ) from None
        cache = cls(path, tokenizer, sources, segments, entries)
        cache.shards.refuse_links()
        cache.retired = manifest["retired"]
        return cache

    def save(self, name: str) -> None:
        """Write the manifest (or, while entries are missing, the partial one)."""
        with self._changed:
            entries = list(self._entries)
        rows = []
        for s, entry in zip(self.segments, entries, strict=True):
            shards = None if entry is None else [shard.to_json() for shard in entry.shards]
            facts = [s.source, s.kind, s.path, s.ordinal, s.nbytes, s.fingerprint, s.begin, s.end, s.is_last]
            facts += [s.num_files, s.root_length]
            rows.append([*facts, shards, {} if entry is None else dict(entry.noticed)])
        tokenizer = self.tokenizer
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": tokenizer.dtype.str,
            "tokenizer": {
                "spec": tokenizer.spec,
                "hash": tokenizer.hash,
                "vocab_size": tokenizer.vocab_size,
                "end_of_text": tokenizer.end_of_text,
                "end_of_text_id": tokenizer.end_of_text_id,
                "special_tokens_in_text": tokenizer.special_tokens_in_text,
                "notices": list(tokenizer.notices),
            },
            "sources": [source.model_dump() for source in self.sources],
            "num_tokens": sum(entry.num_tokens for entry in entries if entry),
            "num_documents": sum(entry.num_documents for entry in entries if entry),
            "segments": rows,
            "retired": self.retired,
        }
        with self.shards.scratch() as folder:
            write_checked_json(self.path / name, manifest, folder / name)

    def save_tokenizer(self) -> None:
        with self.shards.scratch() as folder:
            write_atomically(self.path / "tokenizer.json", self.tokenizer.json.encode(), folder / "tokenizer.json")

    def content_hash(self, segments: Iterable[int]) -> str:
        """Identifies the text of some segments, wherever it lies."""
        return digest(*(shard.key for segment in segments for shard in self.entry(segment).shards))[:16]

    def is_same(self, other: Cache) -> bool:
        """Whether both are complete and describe the same corpus in the same way."""
        return (
            self.is_complete
            and other.is_complete
            and self.tokenizer.hash == other.tokenizer.hash
            and self.sources == other.sources
            and [s.fingerprint for s in self.segments] == [s.fingerprint for s in other.segments]
        )

    # What is known of each segment

    @property
    def is_complete(self) -> bool:
        return self._num_missing == 0

    def has(self, segment: int) -> bool:
        """Whether a segment is tokenised, without waiting for it."""
        return self._entries[segment] is not None

    def entry(self, segment: int) -> Entry:
        """What a segment holds; waits for the builder if it must."""
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
        """For the builder: segments that somebody waits for, the most urgent first."""
        with self._changed:
            self._wanted = [segment for segment in self._wanted if self._entries[segment] is None]
            return self._wanted

    def put(self, segment: int, entry: Entry) -> None:
        """For the builder: a segment is done."""
        with self._changed:
            self._num_missing -= self._entries[segment] is None
            self._entries[segment] = entry
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """For the builder: nothing more will come; whoever waits is told why."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    # Tokens

    def tokens(self, segment: int, start: int, stop: int) -> Iterator[TokenArray]:
        """Tokens [start, stop) of a segment as views of its mapped shards, in order."""
        for shard in self.entry(segment).shards:
            if start < shard.num_tokens and stop > 0:
                yield self.shards.tokens(shard)[max(start, 0) : stop]
            start -= shard.num_tokens
            stop -= shard.num_tokens

    def document_ends(self, segment: int) -> npt.NDArray[np.int64]:
        """Where documents end in a segment, as token offsets within it."""
        ends, before = [np.zeros(0, dtype=np.int64)], 0
        for shard in self.entry(segment).shards:
            ends.append(self.shards.ends(shard) + before)
            before += shard.num_tokens
        return np.concatenate(ends)

    def parts(self, segment: int) -> list[PartInfo]:
        """The files of a segment with their shares of its documents and tokens, in order."""
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
        """What was odd in the corpus: replaced bytes, skipped lines, empty documents, …"""
        total: Counter[str] = Counter()
        for index in range(len(self.segments)):
            total += self.entry(index).noticed
        return total

    def check_unchanged(self) -> None:
        """Sealed shards never change; a cache over files that can be written to looks whether they were."""

    def unique_shards(self) -> dict[str, ShardInfo]:
        """Return every shard once, by its key: equal chunks of text share one."""
        return {shard.key: shard for entry in self._entries if entry for shard in entry.shards}

    def verify(self) -> list[str]:
        """Check every byte of every shard; what is wrong, in words."""
        return [problem for shard in self.unique_shards().values() for problem in self.shards.verify(shard)]


def _check_version(path: Path, manifest: dict[str, Any]) -> None:
    if manifest.get("format") != FORMAT:
        raise CacheError(f"{path}: not a headrace cache. Choose another folder: data.cache_dir=FOLDER")
    version = manifest.get("version")
    if version != VERSION:
        raise CacheError(
            f"{path}: cache version {version}; this headrace reads version {VERSION}."
            " Upgrade headrace, or choose another folder: data.cache_dir=FOLDER"
        )


def _segment(facts: list[Any], num_sources: int) -> Segment:
    """Return a segment as a manifest lists it; values that no corpus has are refused."""
    source, kind, *rest = facts
    segment = Segment(source, Kind(kind), *rest)
    counts = (segment.source, segment.ordinal, segment.nbytes, segment.begin, segment.end, segment.num_files)
    if not all(type(count) is int and count >= 0 for count in (*counts, segment.root_length)):
        raise ValueError("a segment has counts that are not whole numbers")
    if segment.source >= num_sources:
        raise ValueError(f"a segment of source {segment.source}")
    if not isinstance(segment.path, str) or not isinstance(segment.fingerprint, str):
        raise ValueError("a segment without a file")
    return segment


def _read_tokenizer(path: Path, facts: dict[str, Any]) -> Tokenizer:
    file = path / "tokenizer.json"
    tokenizer = Tokenizer(
        facts["spec"],
        read_tokenizer_file(file),
        facts["vocab_size"],
        facts["end_of_text_id"],
        facts["end_of_text"],
        facts.get("special_tokens_in_text", "special"),  # caches from before this could be chosen
        tuple(facts.get("notices", ())),
    )
    if tokenizer.hash != facts["hash"]:
        raise CacheError(
            f"{file}: the tokenizer is not the one that this cache was built with. Put it back, or choose another"
            " folder: data.cache_dir=FOLDER"
        )
    return tokenizer
