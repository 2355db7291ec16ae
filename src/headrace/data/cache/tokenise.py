"""One segment becomes sealed shards: copied where an earlier build has the tokens of a file, encoded otherwise."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from headrace.data.cache.cache import Cache
from headrace.data.cache.encode import encode_documents
from headrace.data.cache.manifest import Entry
from headrace.data.cache.reuse import KnownTokens, Reuse
from headrace.data.cache.shard_writer import ShardWriter
from headrace.data.cache.shards import PartInfo, ShardInfo, TokenArray
from headrace.data.corpus.chunks import Chunk, FilePart
from headrace.data.corpus.readers import Reader
from headrace.data.corpus.remote.fetch import stopping_when
from headrace.data.corpus.segments import Segment
from headrace.data.tokens.encoders import Encoder
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.files import digest

Put = Callable[[TokenArray, npt.NDArray[np.int64]], None]


class Closed(Exception):  # noqa: N818 - a way out, not an error
    """Raised in a worker that is in the middle of a segment when its builder is closed."""


class SegmentTokeniser:
    """Tokenises the segments of one cache; safe to use from several threads."""

    def __init__(
        self, cache: Cache, reuse: Reuse, is_closing: Callable[[], bool], on_encoded: Callable[[int, int], None]
    ) -> None:
        """`on_encoded` gets the number of files and the bytes of each chunk that no earlier build had."""
        self._cache = cache
        self._reuse = reuse
        self._is_closing = is_closing
        self._on_encoded = on_encoded
        self._reader = Reader(cache.sources)

    def close(self) -> None:
        """Close the files that are open between segments."""
        self._reader.close()

    def tokenise(self, number: int, encoder: Encoder) -> Entry:
        """Return what a segment holds, once all of its shards are sealed."""
        segment = self._cache.segments[number]
        infos: list[ShardInfo] = []
        noticed: Counter[str] = Counter()
        for chunk in self._chunks(number):
            key = self._key(segment, chunk)
            info, chunk_noticed = self._cache.shards.find(key) or self._write(segment, chunk, key, encoder)
            noticed.update(chunk_noticed)
            if info.num_tokens:
                infos.append(info)
        return Entry(tuple(infos), noticed)

    def _chunks(self, number: int) -> Iterator[Chunk]:
        """Yield the selected text of a segment; waiting for a remote file ends when the builder is closed."""
        text, segment = self._cache.text, self._cache.segments[number]
        with stopping_when(self._is_closing):
            yield from self._reader.chunks(segment) if text is None else text.chunks(self._reader, number)

    def _key(self, segment: Segment, chunk: Chunk) -> str:
        # Files of a group or an archive are named in the shard, so their names are part of what it is.
        names = [part.name for part in chunk.parts] if segment.names_files else []
        return digest("shard-1", self._cache.tokenizer.hash, *names, *(part.digest for part in chunk.parts))

    def _write(self, segment: Segment, chunk: Chunk, key: str, encoder: Encoder) -> tuple[ShardInfo, Counter[str]]:
        """Write the shard of a chunk; return it with what was noticed in the text."""
        parts: list[PartInfo] = []
        num_fresh = 0
        with ShardWriter(self._cache.shards, key) as writer:
            found = ((part, self._reuse.find(segment, part.digest)) for part in chunk.parts)
            for is_known, run in itertools.groupby(found, key=lambda pair: pair[1] is not None):
                if is_known:
                    parts += [_copy(part, known, writer) for part, known in run if known is not None]
                else:
                    fresh = [part for part, _ in run]
                    add = self._unless_closing(writer.add)
                    for together in _ending_when_open(fresh):
                        parts += _encode(together, self._cache.tokenizer, encoder, writer, add)
                    num_fresh += len(fresh)
            info = writer.seal(parts)
        self._on_encoded(num_fresh, int(chunk.nbytes * num_fresh / len(chunk.parts)))
        noticed: Counter[str] = Counter()
        for part in parts:
            noticed.update(part.noticed)
        return info, noticed

    def _unless_closing(self, put: Put) -> Put:
        """Wrap `put`, which gets a MiB of tokens at a time, so that closing need not wait for a whole segment."""

        def put_or_end(tokens: TokenArray, ends: npt.NDArray[np.int64]) -> None:
            if self._is_closing():
                raise Closed
            put(tokens, ends)

        return put_or_end


def _copy(part: FilePart, known: KnownTokens, writer: ShardWriter) -> PartInfo:
    """Append the tokens that an earlier shard has of a file."""
    writer.add(known.tokens, known.ends)
    counts = (len(known.ends), len(known.tokens))
    return PartInfo(part.name, part.digest, *counts, part.is_open, dict(known.noticed))


def _ending_when_open(parts: list[FilePart]) -> Iterator[list[FilePart]]:
    """Divide files into runs in which only the last may be open: the file after it continues its document."""
    start = 0
    for stop, part in enumerate(parts, start=1):
        if part.is_open or stop == len(parts):
            yield parts[start:stop]
            start = stop


def _encode(
    parts: list[FilePart], tokenizer: Tokenizer, encoder: Encoder, writer: ShardWriter, add: Put
) -> list[PartInfo]:
    """Encode files together, since a call of the encoder costs as much as 50 kB of text. Only the last may be open."""
    begin, first_document = writer.num_tokens, writer.num_documents
    noticed: list[Counter[str]] = [Counter() for _ in parts]
    stops: list[int] = []  # documents up to each file's end
    ends: list[npt.NDArray[np.int64]] = []

    def documents() -> Iterator[list[bytes]]:
        count = 0
        for part, counted in zip(parts, noticed, strict=True):
            for batch in part.documents(counted):
                count += len(batch)
                yield batch
            stops.append(count)

    def put(tokens: TokenArray, token_ends: npt.NDArray[np.int64]) -> None:
        ends.append(token_ends + writer.num_tokens - begin)
        add(tokens, token_ends)

    encode_documents(documents(), parts[-1].is_open, tokenizer, encoder, put)
    num_documents = writer.num_documents - first_document
    bounds = np.concatenate([np.zeros(1, np.int64), *ends])
    token_stops = [int(bounds[min(stop, num_documents)]) for stop in stops]
    token_stops[-1] = writer.num_tokens - begin  # the beginning of an open document has no end yet
    infos = []
    before = (0, 0)
    for part, own, stop, token_stop in zip(parts, noticed, stops, token_stops, strict=True):
        after = (min(stop, num_documents), token_stop)
        infos.append(
            PartInfo(part.name, part.digest, after[0] - before[0], after[1] - before[1], part.is_open, dict(own))
        )
        before = after
    return infos
