"""Hugging Face tokenizers: `encode_batch_fast`, which uses all cores."""

from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer


def make(tokenizer_json: str) -> Callable[[list[str]], Any]:
    tokenizer = Tokenizer.from_str(tokenizer_json)

    def encode(pieces: list[str]) -> Any:
        encoded = tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        return [token for encoding in encoded for token in encoding.ids]

    return encode
