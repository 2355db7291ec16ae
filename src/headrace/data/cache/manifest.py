"""The manifest of a cache: its tokenizer, sources, segments and shards, checked when it is read.

manifest.json   written last, when every segment is tokenised
partial.json    the same for a cache that is still being filled; a later build continues from it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.data.cache.shards import ShardInfo, check_key
from headrace.data.corpus.layout import Layout
from headrace.data.corpus.segments import Kind, Segment
from headrace.data.corpus.sources import Source
from headrace.data.tokens.tokenizer_json import read_tokenizer_file
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.errors import CacheError
from headrace.files import read_checked_json

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


@dataclass(frozen=True)
class Manifest:
    """Everything that a manifest says."""

    tokenizer: Tokenizer
    sources: Sequence[Source]
    segments: Sequence[Segment]
    entries: Sequence[Entry | None]
    """What each segment holds; None: it is not tokenised yet."""
    retired: list[str]
    """Shards that only the previous version of the corpus needed."""
    selection: dict[str, str | float] = field(default_factory=dict)
    """What was selected from the corpus; empty: everything."""
    duplicates: dict[str, int] | None = None
    """How many documents and bytes repeat earlier documents exactly; None: not counted."""
    layout: Layout | None = None
    """How the list of files was divided into the segments; None where all files are on this disk, and in manifests from
    before this was kept."""

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as it is written."""
        tokenizer = self.tokenizer
        return {
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
            "num_tokens": sum(entry.num_tokens for entry in self.entries if entry),
            "num_documents": sum(entry.num_documents for entry in self.entries if entry),
            "segments": [_row(*pair) for pair in zip(self.segments, self.entries, strict=True)],
            "retired": self.retired,
            "selection": self.selection,
            "duplicates": self.duplicates,
            **({} if self.layout is None else {"layout": asdict(self.layout)}),
        }


def is_manifest(path: Path) -> bool:
    """Check whether a file is a manifest by looking for the name of the format, without parsing the file."""
    try:
        return path.is_file() and f'"format":"{FORMAT}"'.encode() in path.read_bytes()
    except OSError:  # a folder that may not be searched, or a text in the place of a path
        return False


def read_manifest(path: Path, name: str) -> Manifest:
    """Read the manifest of a cache, finished or partial. Values that no build writes are refused."""
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
        layout = Layout.from_json(manifest.get("layout"))
        _check_counts(manifest)
        if name == MANIFEST and None in entries:
            raise ValueError("a finished cache lacks segments")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
        raise CacheError(
            f"{path / name}: not as headrace writes it ({problem}). Delete {path} and run `headrace prepare` again."
        ) from None
    chosen = (manifest.get("selection", {}), manifest.get("duplicates"), layout)
    return Manifest(tokenizer, sources, segments, entries, manifest["retired"], *chosen)


def _row(segment: Segment, entry: Entry | None) -> list[Any]:
    s = segment
    facts = [s.source, s.kind, s.path, s.ordinal, s.nbytes, s.fingerprint, s.begin, s.end, s.is_last, s.num_files]
    shards = None if entry is None else [shard.to_json() for shard in entry.shards]
    return [*facts, s.root_length, shards, {} if entry is None else dict(entry.noticed)]


def _check_version(path: Path, manifest: dict[str, Any]) -> None:
    if manifest.get("format") != FORMAT:
        raise CacheError(f"{path}: not a headrace cache. Choose another folder: data.cache_dir=FOLDER")
    version = manifest.get("version")
    if version != VERSION:
        raise CacheError(
            f"{path}: cache version {version}; this headrace reads version {VERSION}."
            " Upgrade headrace, or choose another folder: data.cache_dir=FOLDER"
        )


def _check_counts(manifest: dict[str, Any]) -> None:
    duplicates, selection = manifest.get("duplicates"), manifest.get("selection", {})
    if duplicates is not None and not all(type(duplicates[unit]) is int for unit in ("documents", "bytes")):
        raise ValueError("counts of duplicates that are not whole numbers")
    if not isinstance(selection, dict):
        raise ValueError("a selection that is not a table")


def _segment(facts: list[Any], num_sources: int) -> Segment:
    """Return a segment as a manifest lists it; values that no corpus has are refused."""
    source, kind, *rest = facts
    segment = Segment(source, Kind(kind), *rest)
    counts = (segment.source, segment.ordinal, segment.nbytes, segment.begin, segment.end, segment.num_files)
    if not all(type(count) is int and count >= 0 for count in (*counts, segment.root_length)):
        raise ValueError("a segment has counts that are not whole numbers")
    if segment.source >= num_sources:
        raise ValueError(f"a segment names source {segment.source} of {num_sources}")
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
