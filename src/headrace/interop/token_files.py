"""Token files of other projects as a token cache, mapped where they lie and never copied.

    cache = open_token_files("openwebtext/train.bin", tokenizer="gpt2")
    loader = hr.Loader(cache, batch_size=32, sequence_length=256)

Order, state, packing, validation and tracing are those of any cache; token_formats.py lists the formats.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data.cache.cache import Cache
from headrace.data.cache.manifest import Entry
from headrace.data.cache.shards import PartInfo, ShardFolder, ShardInfo, TokenArray
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.segments import Kind, Segment
from headrace.data.corpus.sources import Source
from headrace.data.tokens.tokenizers import Tokenizer, load_tokenizer
from headrace.errors import TokenFileError, UsageError
from headrace.files import digest
from headrace.interop.token_formats import TokenFile, read_token_file

ASSUMED_BYTES_PER_TOKEN = 4
SAMPLE_BYTES = 4096


def open_token_files(
    paths: str | Path | Sequence[str | Path], tokenizer: str | Tokenizer, dtype: str | None = None
) -> Cache:
    """Open token files as a cache. `tokenizer` is the one that made them: a tokenizer.json or a hub name.

    `dtype` ("uint16", "uint32") is for files that do not record it: nanoGPT's and OLMo's, which are uint16 unless the
    vocabulary is larger. An id above the vocabulary is an error when its part of the file is first used; a file that is
    written to while in use is an error at the next batch.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise UsageError("no token file given")
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer(tokenizer, _no_text)
    try:
        raw_dtype = np.dtype(dtype) if dtype else tokenizer.dtype
    except TypeError:
        raise UsageError(f"dtype {dtype!r} is not known: use 'uint16' or 'uint32'") from None
    files = [read_token_file(Path(path), raw_dtype) for path in given]
    for file in files:
        if file.dtype != files[0].dtype:
            raise TokenFileError(
                f"{file.path}: holds {file.dtype.name} tokens, {files[0].path} {files[0].dtype.name}. Files that are"
                " opened together must be of one type."
            )
        if file.dtype.itemsize < tokenizer.dtype.itemsize:
            raise TokenFileError(
                f"{file.path}: {file.dtype.name} tokens cannot be of a vocabulary of {tokenizer.vocab_size:,}."
            )
    return TokenFileCache(files, tokenizer)


def _no_text() -> Iterator[bytes]:
    raise UsageError("tokens are read with the tokenizer that made them: give its tokenizer.json or hub name")


@dataclass(frozen=True)
class _Part:
    """One segment: tokens [start, stop) of a file."""

    file: TokenFile
    start: int
    stop: int


class TokenFileCache(Cache):
    """A cache whose shards are parts of other people's files."""

    has_text = False

    def __init__(self, files: Sequence[TokenFile], tokenizer: Tokenizer) -> None:
        parts: dict[str, _Part] = {}
        segments: list[Segment] = []
        entries: list[Entry] = []
        shards = _FileShards(tokenizer, files[0].dtype, parts)
        for number, file in enumerate(files):
            cuts = _cuts(file, shards.mapped(file), tokenizer.end_of_text_id)
            # Documents that end up to each cut, looked up at once: comparing all ends for each segment is quadratic.
            ended = [0] * len(cuts) if file.ends is None else np.searchsorted(file.ends, cuts, "right").tolist()
            for ordinal, (start, stop) in enumerate(pairwise(cuts)):
                key = f"{_sample(shards.mapped(file)[start:stop])}-{number}.{ordinal}"
                parts[key] = _Part(file, start, stop)
                num_documents = ended[ordinal + 1] - ended[ordinal]
                entries.append(Entry((ShardInfo(key, stop - start, num_documents, (), ()),)))
                nbytes = (stop - start) * ASSUMED_BYTES_PER_TOKEN
                # Rows are known to be documents of their own; a range of a text may be cut anywhere.
                kind = Kind.RANGE if file.ends is None else Kind.ROWS
                is_last = stop == file.num_tokens
                path = str(file.path)
                segments.append(Segment(0, kind, path, ordinal, nbytes, key, start, stop, is_last))
        source = Source(path=tuple(str(file.path) for file in files))
        super().__init__(files[0].path.parent, tokenizer, [source], segments, entries)
        self.shards = shards
        self.dtype = files[0].dtype
        self._files = files

    def __reduce__(self) -> tuple[Any, ...]:
        # The copy leaves behind what a tokenizer has loaded, which does not pickle.
        return open_token_files, ([f.path for f in self._files], replace(self.tokenizer), self.dtype.name)

    def check_unchanged(self) -> None:
        for file in self._files:
            file.check_unchanged()

    @property
    def num_documents(self) -> int:
        """The number of documents; where there is no index, all tokens are read to count them."""
        return sum(len(self.document_ends(segment)) for segment in range(len(self.segments)))


class _FileShards(ShardFolder):
    """Shards that are parts of mapped files."""

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype[Any], parts: dict[str, _Part]) -> None:
        super().__init__(Path(), dtype)
        self._tokenizer = tokenizer
        self._parts = parts
        self._maps: dict[Path, TokenArray] = {}

    def mapped(self, file: TokenFile) -> TokenArray:
        """Map all tokens of a file, with pyarrow: each of NumPy's mappings would hold a file descriptor."""
        if file.path not in self._maps:
            import pyarrow as pa

            try:
                with pa.memory_map(str(file.path)) as source:
                    data = source.read_buffer()
            except OSError as problem:
                raise TokenFileError(f"{file.path}: cannot be mapped ({problem}).") from None
            file.check_unchanged()  # the file that was mapped is the one that was looked at
            self._maps[file.path] = np.frombuffer(data, file.dtype, file.num_tokens, file.offset)
        return self._maps[file.path]

    def tokens(self, info: ShardInfo) -> TokenArray:
        part = self._parts[info.key]
        part.file.check_unchanged()
        tokens = self.mapped(part.file)[part.start : part.stop]
        if info.key not in self._checked:
            self._check_ids(part, tokens)
            self._checked.add(info.key)
        return tokens

    def ends(self, info: ShardInfo) -> npt.NDArray[np.int64]:
        part = self._parts[info.key]
        if part.file.ends is None:
            return np.flatnonzero(self.tokens(info) == self._tokenizer.end_of_text_id) + 1
        low, high = np.searchsorted(part.file.ends, [part.start, part.stop], side="right")
        return part.file.ends[low:high] - part.start

    def parts(self, key: str) -> list[PartInfo]:
        part = self._parts[key]
        ends = self.ends(ShardInfo(key, part.stop - part.start, 0, (), ()))
        is_open = not (len(ends) and ends[-1] == part.stop - part.start)
        return [PartInfo(str(part.file.path), key, len(ends), part.stop - part.start, is_open, {})]

    def verify(self, info: ShardInfo) -> list[str]:
        self._checked.discard(info.key)
        try:
            self.tokens(info)
        except TokenFileError as problem:
            return [str(problem)]
        return []

    def _check_ids(self, part: _Part, tokens: TokenArray) -> None:
        size = self._tokenizer.vocab_size
        if int(tokens.max()) >= size:
            where = int(np.argmax(tokens >= size))
            raise TokenFileError(
                f"{part.file.path}: token {part.start + where:,} is {int(tokens[where])}, beyond the tokenizer's"
                f" {size:,} ids: these tokens are of another tokenizer, or not {part.file.dtype.name}."
            )


def _cuts(file: TokenFile, tokens: TokenArray, end_of_text_id: int) -> list[int]:
    """Return the bounds of segments: at the end of a document where one is near."""
    cuts, scale = [0], current_scale()
    for number in range(1, max(1, round(file.num_tokens / scale.token_segment_tokens))):
        nominal = number * scale.token_segment_tokens
        first = max(nominal - scale.token_cut_window_tokens, cuts[-1])
        if file.ends is None:
            ends = first + 1 + np.flatnonzero(tokens[first:nominal] == end_of_text_id)
        else:
            ends = file.ends[np.searchsorted(file.ends, nominal, side="right") - 1 :][:1]
        cuts.append(int(ends[-1]) if len(ends) and cuts[-1] < ends[-1] <= nominal else nominal)
    return [*cuts, file.num_tokens]


def _sample(tokens: TokenArray) -> str:
    """Return a digest of the beginning, the end and the size of a text; reading all of it would take too long."""
    count = SAMPLE_BYTES // tokens.itemsize
    return digest(tokens[:count].tobytes(), tokens[-count:].tobytes(), str(len(tokens)))[:16]
