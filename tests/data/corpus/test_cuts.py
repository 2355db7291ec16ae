from __future__ import annotations

import functools
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace.data.corpus.cuts import character_start, first_safe_cut, last_safe_cut, split_document
from tests.conftest import make_text

# Llama 3's and Qwen's pattern: other rules for numbers, punctuation and line ends than GPT-2's.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# o200k's: takes slashes after line ends.
O200K_TAIL = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@functools.cache
def tokenizer(kind: str) -> Tokenizer:
    made = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    if kind == "gpt2":
        made.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(Regex(LLAMA3 if kind == "llama3" else O200K_TAIL), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    made.train_from_iterator([make_text(30_000)], trainer)
    return made


# Text made of the things that cuts and pre-tokenizers look at.
ATOMS = ["a", "Z", "the", "x1", "7", "'s", "'LL", " ", "  ", "\n", "\n\n", "\r\n", "\t", ".", "…", "/", "//", "_",
         "é", "水", "。", "\u3000", "\u00a0", "\u2028", "я", "\u0301", "\U0001f33e",
         "\u0085", "\ufeff", "{"]  # fmt: skip
TEXTS = st.one_of(st.lists(st.sampled_from(ATOMS), max_size=60).map("".join), st.text(max_size=80))


@settings(max_examples=400, deadline=None)
@given(TEXTS, st.integers(4, 40), st.sampled_from(["gpt2", "llama3", "o200k"]))
def test_safe_cuts_leave_tokens_alone(text: str, limit: int, kind: str) -> None:
    data = text.encode()
    encode = tokenizer(kind).encode
    whole = encode(text).ids
    for start in range(0, len(data), limit):
        for cut in (first_safe_cut(data, start, start + limit), last_safe_cut(data, start, start + limit)):
            if cut is not None:
                parts = encode(data[:cut].decode()).ids + encode(data[cut:].decode()).ids
                assert parts == whole, (text, cut)


@given(TEXTS, st.integers(4, 40))
def test_pieces_make_up_the_document(text: str, limit: int) -> None:
    data = text.encode()
    pieces = split_document(data, limit)
    assert b"".join(pieces) == data
    assert all(len(piece) <= limit for piece in pieces)
    for piece in pieces:
        piece.decode()  # no character is cut


@given(st.binary(max_size=200), st.integers(4, 40))
def test_any_bytes_are_cut_in_bounded_pieces(data: bytes, limit: int) -> None:
    pieces = split_document(data, limit)
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= limit for piece in pieces) or not data


def test_cuts_of_ordinary_text_are_safe_ones() -> None:
    text = make_text(400_000).encode()
    pieces = split_document(text)
    assert len(pieces) > 5
    assert all(b.startswith(b" ") or a.endswith(b"\n") for a, b in pairwise(pieces))


def test_character_start() -> None:
    data = "aé水".encode()
    assert [character_start(data, i) for i in range(len(data) + 1)] == [0, 1, 1, 3, 3, 3, 6]
