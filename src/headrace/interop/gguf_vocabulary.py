"""Tokenizers as llama.cpp writes them down: a list of tokens, merges, and one of its own ways to split text.

llama.cpp knows byte-level BPE with GPT-2's split. A `bpe:N` tokenizer is one. A `byte` tokenizer is one without merges.
A `char` tokenizer becomes one: each character is spelled as its UTF-8 bytes, and merges put those together again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.data.tokens.encoders import byte_vocabulary, is_byte_table, is_character_table
from headrace.data.tokens.tokenizer_json import parse_tokenizer
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.errors import UsageError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""The kinds of a token, as GGUF numbers them."""
_BPE_EXTRAS = "dropout continuing_subword_prefix end_of_word_suffix byte_fallback ignore_merges".split()


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a byte-level BPE, by id."""

    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    notice: str = ""
    """What llama.cpp does with some text that headrace does not; empty if there is no such text."""


def make_vocabulary(tokenizer: Tokenizer, num_ids: int) -> Vocabulary:
    """Return a tokenizer as a byte-level BPE with GPT-2's split; one that cannot be written so is refused by name."""
    data = parse_tokenizer(tokenizer.json)
    notice = ""
    if is_character_table(data):
        spelled, merges = _characters_as_merges(data)
        notice = "characters that the training text did not have are left out of a prompt by llama.cpp"
    else:
        _check_is_gpt2_bpe(tokenizer.spec, data)
        spelled = {str(token): int(index) for token, index in data["model"]["vocab"].items()}
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"].get("merges") or ()]
    tokens = [f"<|unused {index}|>" for index in range(num_ids)]
    kinds = [UNUSED] * num_ids
    for token, index in spelled.items():
        tokens[index], kinds[index] = token, NORMAL
    for added in data.get("added_tokens") or ():
        index = tokenizer.special_tokens.get(added["content"], added["id"])
        tokens[index], kinds[index] = added["content"], CONTROL if added.get("special") else USER_DEFINED
    # llama.cpp refuses a BPE without merges. This one never happens: no text is split into such pieces.
    return Vocabulary(tokens, kinds, merges or [f"{tokenizer.end_of_text} {tokenizer.end_of_text}"], notice)


def _characters_as_merges(data: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    """Spell the characters of a `char` tokenizer as bytes, and list the merges that make one token of each.

    Bytes that begin a character never continue one, so no merge reaches over the end of a character.
    """
    stand_ins = {byte: token for token, byte in byte_vocabulary().items()}
    special = {added["content"] for added in data.get("added_tokens") or ()}
    spelled: dict[str, int] = {}
    merges: dict[str, None] = {}  # in order, each once
    for character, index in data["model"]["vocab"].items():
        if character in special:
            continue
        pieces = [stand_ins[byte] for byte in character.encode()]
        spelled["".join(pieces)] = int(index)
        for end in range(1, len(pieces)):
            merges[f"{''.join(pieces[:end])} {pieces[end]}"] = None
    return spelled, list(merges)


def _check_is_gpt2_bpe(spec: str, data: dict[str, Any]) -> None:
    """Refuse a tokenizer that llama.cpp would split or merge in another way, and say which part of it is the reason."""
    reason = _difference(data)
    if reason:
        raise UsageError(
            f"tokenizer {spec}: GGUF cannot express it: {reason}. Tokenizers that can be exported: bpe:N, char, byte,"
            " and a tokenizer.json that is byte-level BPE with GPT-2's split (such as gpt2)."
        )


def _difference(data: dict[str, Any]) -> str:
    """Say what a parsed tokenizer.json does that llama.cpp's byte-level BPE does not; empty if there is nothing."""
    model, split = data["model"], data.get("pre_tokenizer") or {}
    if model.get("type") != "BPE":
        return f"its model is {model.get('type')}, not BPE"
    if data.get("normalizer"):
        return f"its normalizer {data['normalizer'].get('type')} changes text first"
    for extra in _BPE_EXTRAS:
        if model.get(extra):
            return f"its BPE has {extra}"
    if split.get("type") != "ByteLevel":
        return f"its pre-tokenizer is {split.get('type')}, not ByteLevel"
    if split.get("add_prefix_space", True):
        return "its pre-tokenizer adds a space before a text"
    if not split.get("use_regex", True) and not is_byte_table(data):
        return "its pre-tokenizer does not split text into words"
    if not byte_vocabulary().keys() <= model["vocab"].keys():
        return "its vocabulary lacks some bytes"
    trimmed = next((token["content"] for token in data.get("added_tokens") or () if _trims(token)), "")
    return f"its token {trimmed!r} takes the white space around it, or stands only between words" if trimmed else ""


def _trims(added: dict[str, Any]) -> bool:
    return any(added.get(name) for name in ("lstrip", "rstrip", "single_word"))
