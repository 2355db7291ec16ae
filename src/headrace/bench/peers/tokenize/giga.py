"""gigatoken alone, parallel as it comes."""

from collections.abc import Callable
from typing import Any

import gigatoken
import numpy as np


def make(tokenizer_json: str) -> Callable[[list[str]], Any]:
    tokenizer = gigatoken.Tokenizer.from_json(tokenizer_json)

    def encode(pieces: list[str]) -> Any:
        encoded = tokenizer.encode_batch([piece.encode() for piece in pieces], parallel=True)
        return np.asarray(encoded.layout.content.data)

    return encode
