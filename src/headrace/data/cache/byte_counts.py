"""Bytes of text behind tokens, for bits per byte.

A token of most tokenizers stands for a fixed number of bytes, which its decoder gives. Where text is normalized, where
white space is dropped or unknown words become one token, the tokens alone do not show how long the text was: there the
decoder's lengths are scaled to what a sample of the corpus really takes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from headrace.data.cache.cache import Cache
from headrace.data.cache.open import sample_documents
from headrace.data.corpus.segments import divide_corpus
from headrace.errors import CorpusError

SAMPLE_BYTES = 512 << 10
SAMPLE_PLACES = 16
ENCODED_TOGETHER = 64


def bytes_per_id(cache: Cache) -> npt.NDArray[np.float64]:
    """Return how many bytes of a corpus each token id stands for; special tokens stand for none."""
    lengths = cache.tokenizer.byte_lengths().astype(np.float64)
    if cache.tokenizer.gives_text_back or not cache.has_text:
        return lengths
    text_bytes, decoded_bytes = 0, 0.0
    encoder = cache.tokenizer.encoder()
    try:
        # The segments of a cache that was opened by its manifest do not know their files.
        segments = [segment for segment in cache.segments if segment.files] or divide_corpus(cache.sources)
        for pieces in _batches(sample_documents(cache.sources, segments, SAMPLE_BYTES, SAMPLE_PLACES)):
            text_bytes += sum(map(len, pieces))
            decoded_bytes += lengths[encoder.encode(pieces)[0]].sum()
    except CorpusError:
        return lengths  # the text is no longer there: the decoder's lengths are the best there is
    return lengths * (text_bytes / decoded_bytes) if decoded_bytes else lengths


def _batches(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Group pieces: few enough to take little memory, enough to need few calls of the encoder."""
    batch: list[bytes] = []
    for piece in pieces:
        batch.append(piece)
        if len(batch) == ENCODED_TOGETHER:
            yield batch
            batch = []
    if batch:
        yield batch
