"""Which tokens of a vocabulary have a part in common: the pieces that BPE merged into them, or the word they spell.

` walking` and ` talking` end in the same piece; `The`, ` the` and ` The` spell the same word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data.tokens.tokenizer_json import make_backend, parse_tokenizer

WORD_MARKS = "Ġ▁"
"""How tokenizers spell the space before a word: byte-level ones, and SentencePiece's."""
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")  # other letters may stand for bytes

Part = tuple[str, str]
"""A place ("left", "right" or "word"), and what stands there."""


@dataclass(frozen=True)
class SharedParts:
    """Parts that each belong to several tokens, as pairs of a token and one of its parts."""

    tokens: npt.NDArray[np.int64]
    parts: npt.NDArray[np.int64]
    """A number for each part, from 0."""
    num_parts: int


def shared_parts(tokenizer_json: str) -> SharedParts:
    """Find the parts that tokens of a vocabulary share."""
    data = parse_tokenizer(tokenizer_json)
    vocabulary: dict[str, int] = make_backend(tokenizer_json).get_vocab(with_added_tokens=False)
    merged_from = _merged_from(data["model"])
    found = [
        (index, part)
        for token, index in sorted(vocabulary.items(), key=lambda item: item[1])
        for part in _parts(token, merged_from)
    ]
    owners = Counter(part for _, part in found)
    numbers: dict[Part, int] = {}
    pairs = [
        (index, numbers.setdefault(part, len(numbers)))
        for index, part in found
        if owners[part] > 1  # what only one token has tells nothing about others
    ]
    tokens, parts = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return SharedParts(tokens, parts, len(numbers))


def _parts(token: str, merged_from: Mapping[str, tuple[str, str]]) -> Iterator[Part]:
    """Yield the parts of a token."""
    if token in merged_from:
        yield from zip(("left", "right"), merged_from[token], strict=True)
    yield "word", token.lstrip(WORD_MARKS).translate(_LOWER)


def _merged_from(model: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the two pieces that make each token of a BPE; by the first merge, if there are several."""
    pieces: dict[str, tuple[str, str]] = {}
    for merge in model.get("merges") or ():
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        pieces.setdefault(left + right, (left, right))
    return pieces
