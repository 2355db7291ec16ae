"""Documents become tokens with end-of-text between them, a MiB at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from headrace.data.cache.shards import TokenArray
from headrace.data.corpus.chunks import DOCUMENT_OVERHEAD_BYTES
from headrace.data.corpus.cuts import PIECE_BYTES, split_document
from headrace.data.tokens.encoders import Encoder
from headrace.data.tokens.tokenizers import Tokenizer

ENCODE_BYTES = 1 << 20


def encode_documents(
    documents: Iterable[list[bytes]],
    is_open: bool,
    tokenizer: Tokenizer,
    encoder: Encoder,
    put: Callable[[TokenArray, npt.NDArray[np.int64]], None],
    nbytes: int = ENCODE_BYTES,
) -> None:
    """Encode documents, and call `put` with their tokens and the ends of documents among these, a MiB at a time.

    End-of-text follows every document, except the last one if it `is_open`: its rest comes in another chunk.
    """
    pieces: list[bytes] = []
    is_final: list[bool] = []
    size = 0
    unbroken = tokenizer.unbroken
    for document in itertools.chain.from_iterable(documents):
        for part in [document] if len(document) <= PIECE_BYTES else split_document(document, unbroken=unbroken):
            if size >= nbytes:
                put(*_encode_pieces(pieces, is_final, tokenizer, encoder))
                pieces, is_final, size = [], [], 0
            pieces.append(part)
            is_final.append(False)
            size += len(part) + DOCUMENT_OVERHEAD_BYTES
        is_final[-1] = True
    if pieces:
        is_final[-1] = not is_open
        put(*_encode_pieces(pieces, is_final, tokenizer, encoder))


def _encode_pieces(
    pieces: list[bytes], is_final: list[bool], tokenizer: Tokenizer, encoder: Encoder
) -> tuple[TokenArray, npt.NDArray[np.int64]]:
    ids, offsets = encoder.encode(pieces)
    stops = offsets[1:][np.array(is_final, dtype=bool)]
    tokens = np.insert(ids.astype(tokenizer.dtype), stops, tokenizer.end_of_text_id)
    return tokens, stops + np.arange(1, len(stops) + 1)
