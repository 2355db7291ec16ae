"""tiktoken: an `Encoding` with the same merges, and `encode_ordinary_batch` with a thread per core."""

import json
import os
from collections.abc import Callable
from typing import Any

import tiktoken
from tokenizers.pre_tokenizers import ByteLevel

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def byte_of_stand_in() -> dict[str, int]:
    """Return the byte that each printable character stands for in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def make(tokenizer_json: str) -> Callable[[list[str]], Any]:
    data = json.loads(tokenizer_json)
    special = {token["content"]: token["id"] for token in data["added_tokens"]}
    bytes_of = byte_of_stand_in()
    assert set(bytes_of) == set(ByteLevel.alphabet())
    ranks = {
        bytes(bytes_of[character] for character in token): rank
        for token, rank in data["model"]["vocab"].items()
        if token not in special
    }
    encoding = tiktoken.Encoding("bench", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=special)
    threads = os.cpu_count() or 1
    return lambda pieces: [id for ids in encoding.encode_ordinary_batch(pieces, num_threads=threads) for id in ids]
