"""Text to token ids, fast. One encoder per worker thread; all give the ids that Hugging Face tokenizers gives."""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.data.tokens.special_tokens import SpecialTokensInText, without_special_tokens
from headrace.data.tokens.tokenizer_json import make_backend, parse_tokenizer
from headrace.errors import TokenizerError

CHARACTER_PATTERN = r"[\s\S]"

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]

# Tried on every tokenizer before gigatoken is trusted with it: contractions, numbers, runs of white space, line ends,
# scripts without spaces, combining marks, emoji, control characters.
_PROBE = (
    "The mill's wheel can't turn; we'll see.  It'S 3.14159 or 1234567890…\n\n\tindented\r\n  \u00a0\u3000end \n",
    "naïve café Ünïcödé ΑΒΓ привет мир עברית العربية हिन्दी 日本語のテキスト。中文没有空格 한국어",
    "👩‍👩‍👧 e\u0301 ½ Ⅷ ﬁ \x00\x01\x7f\u200b\u2028 a_b CamelCase x+=1; // <html>&nbsp;</html> 'quoted' \"twice\"",
    " leading", "trailing ", "   ", "\n", "a",
)  # fmt: skip


class Encoder(Protocol):
    """Encodes UTF-8 pieces; piece i has the ids [offsets[i], offsets[i + 1])."""

    def encode(self, pieces: list[bytes]) -> tuple[Ids, Offsets]: ...

    def recycle(self) -> None:
        """Give back memory that was kept to be faster."""


class GigatokenEncoder:
    """An encoder that uses gigatoken: some 20 times as fast as Hugging Face tokenizers, with the same ids."""

    def __init__(self, tokenizer_json: str) -> None:
        self._json = tokenizer_json
        self._backend = _gigatoken(tokenizer_json)

    def encode(self, pieces: list[bytes]) -> tuple[Ids, Offsets]:
        layout = self._backend.encode_batch(pieces, parallel=False).layout
        return np.asarray(layout.content.data), np.asarray(layout.offsets.data)

    def recycle(self) -> None:
        # Its cache of words only ever grows; a fresh instance is the way to empty it.
        self._backend = _gigatoken(self._json)


class HuggingFaceEncoder:
    """An encoder that uses Hugging Face tokenizers, which know every tokenizer.json."""

    def __init__(self, tokenizer_json: str) -> None:
        self._backend = make_backend(tokenizer_json)

    def encode(self, pieces: list[bytes]) -> tuple[Ids, Offsets]:
        texts = [piece.decode() for piece in pieces]
        encoded = [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]
        offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([len(ids) for ids in encoded], out=offsets[1:])
        return np.fromiter((i for ids in encoded for i in ids), dtype=np.uint32, count=int(offsets[-1])), offsets

    def recycle(self) -> None:
        pass


class CharacterEncoder:
    """One id per character, by table."""

    def __init__(self, vocabulary: dict[str, int], unknown_id: int) -> None:
        characters = {ord(token): index for token, index in vocabulary.items() if len(token) == 1}
        self._table = np.full(max(characters, default=0) + 2, unknown_id, dtype=np.uint32)
        self._table[list(characters)] = list(characters.values())

    def encode(self, pieces: list[bytes]) -> tuple[Ids, Offsets]:
        texts = [piece.decode() for piece in pieces]
        offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
        return self._table[np.minimum(codes, len(self._table) - 1)], offsets

    def recycle(self) -> None:
        pass


class ByteEncoder:
    """One id per byte: its value."""

    def encode(self, pieces: list[bytes]) -> tuple[Ids, Offsets]:
        offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
        return np.frombuffer(b"".join(pieces), dtype=np.uint8).astype(np.uint32), offsets

    def recycle(self) -> None:
        pass


def make_encoder(tokenizer_json: str, special_tokens_in_text: SpecialTokensInText) -> Encoder:
    """Return the fastest encoder that gives the right ids for this tokenizer.json."""
    data = parse_tokenizer(tokenizer_json)
    try:
        added = [token["content"] for token in data.get("added_tokens") or ()]
        if special_tokens_in_text == "ordinary":
            if is_byte_table(data):
                return ByteEncoder()
            if is_character_table(data):
                vocabulary = data["model"]["vocab"]
                return CharacterEncoder(vocabulary, vocabulary[data["model"]["unk_token"]])
            tokenizer_json = json.dumps(without_special_tokens(data))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise TokenizerError(f"not a Hugging Face tokenizer.json ({problem!r}).") from None
    oracle = HuggingFaceEncoder(tokenizer_json)
    try:
        fast = GigatokenEncoder(tokenizer_json)
        if _agree(fast, oracle, [f"a{token} {token}b" for token in added]):
            return fast
    except (ValueError, RuntimeError, TypeError, KeyError, NotImplementedError, OSError):
        pass  # a tokenizer that gigatoken does not know
    return oracle


def is_character_table(data: dict[str, Any]) -> bool:
    """Check whether a tokenizer.json is one that headrace writes for `char`: an id per character, and nothing else."""
    model = data["model"]
    split = {"type": "Split", "pattern": {"Regex": CHARACTER_PATTERN}, "behavior": "Isolated", "invert": False}
    return (
        model.get("type") == "WordLevel"
        and model.get("unk_token") in model["vocab"]
        and data.get("pre_tokenizer") == split
        and _is_plain(data)
    )


def is_byte_table(data: dict[str, Any]) -> bool:
    """Check whether a tokenizer.json is one that headrace writes for `byte`: an id per byte, which is its value."""
    model, pre_tokenizer = data["model"], data.get("pre_tokenizer") or {}
    return (
        model.get("type") == "BPE"
        and not any(model.get(key) for key in ("merges", "dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        and pre_tokenizer.get("type") == "ByteLevel"
        and pre_tokenizer.get("use_regex") is False
        and pre_tokenizer.get("add_prefix_space") is False
        and model["vocab"] == byte_vocabulary()
        and _is_plain(data)
    )


def _is_plain(data: dict[str, Any]) -> bool:
    """Check whether text reaches the vocabulary as it is: not normalized, nor searched for added tokens."""
    added = data.get("added_tokens") or ()
    return not data.get("normalizer") and all(token.get("special") and len(token["content"]) > 1 for token in added)


def byte_vocabulary() -> dict[str, int]:
    """Return GPT-2's printable stand-in for each byte, numbered by the byte's value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in stand_ins]
    stand_ins |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return {stand_ins[byte]: byte for byte in range(256)}


def _agree(fast: Encoder, oracle: Encoder, more_texts: list[str]) -> bool:
    pieces = [text.encode() for text in (*_PROBE, *more_texts)]
    ids, offsets = fast.encode(pieces)
    expected_ids, expected_offsets = oracle.encode(pieces)
    return bool(np.array_equal(ids, expected_ids) and np.array_equal(offsets, expected_offsets))


def _gigatoken(tokenizer_json: str) -> Any:
    try:
        import gigatoken
    except ImportError as problem:
        raise TokenizerError(f"gigatoken cannot be imported ({problem}): pip install gigatoken") from None
    return gigatoken.Tokenizer.from_json(tokenizer_json)
