"""Limits on how much text a compressed file may hold, against decompression bombs."""

from __future__ import annotations

from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError

BOMB_FREE_BYTES = 64 << 20


def expansion_limit(source: Source, file: SourceFile) -> int:
    """Return how much text a compressed file may hold."""
    return max(BOMB_FREE_BYTES, source.max_expansion * file.size)


def check_expansion(source: Source, file: SourceFile, nbytes: int) -> None:
    """Refuse a file whose text turns out larger than it may be."""
    limit = expansion_limit(source, file)
    if nbytes > limit:
        raise CorpusError(
            f"{file.path}: expands to more than {limit >> 20:,} MiB, over {source.max_expansion} times its size: a"
            " decompression bomb? If it is meant to, raise the limit: data.max_expansion=FACTOR"
        )
