"""Special tokens in the text of documents: what `<|endoftext|>` becomes when somebody wrote it.

By default it is ordinary text. Hugging Face tokenizers and gigatoken look for special tokens in every text, and some
models (Unigram, WordPiece) hold them in the vocabulary that they match words with. So the encoder gets a tokenizer.json
in which each special token has a random name that no text contains: ids stay, and nothing is left to be matched.
"""

from __future__ import annotations

import secrets
from typing import Any, Literal, get_args

from headrace.errors import TokenizerError, UsageError

SpecialTokensInText = Literal["ordinary", "special"]
"""What the spelling of a special token inside a document becomes: ordinary text, or the special token itself."""


def check_special_tokens_in_text(value: str) -> None:
    """Refuse a setting that does not exist."""
    if value not in get_args(SpecialTokensInText):
        raise UsageError(f"special_tokens_in_text {value!r}: use one of {', '.join(get_args(SpecialTokensInText))}")


def special_tokens(data: dict[str, Any]) -> list[str]:
    """Return the special tokens of a parsed tokenizer.json."""
    return [token["content"] for token in data.get("added_tokens") or () if token.get("special")]


def unknown_token(data: dict[str, Any]) -> str | None:
    """Return the token that a parsed tokenizer.json gives to text it does not know, if it has one."""
    model = data["model"]
    if model.get("type") == "Unigram":
        return None if model.get("unk_id") is None else str(model["vocab"][model["unk_id"]][0])
    unknown = model.get("unk_token")
    return None if unknown is None else str(unknown)


def without_special_tokens(data: dict[str, Any]) -> dict[str, Any]:
    """Return a parsed tokenizer.json with the same ids that encodes special tokens' spellings as ordinary text."""
    names = {content: f"\uffff{secrets.token_hex(16)}" for content in special_tokens(data)}
    short = [content for content in names if len(content) == 1]
    if short:
        raise TokenizerError(
            f"the tokenizer's special token {short[0]!r} is a single character, which looks like ordinary text."
            " Set data.special_tokens_in_text=special (--special-tokens-in-text special) to give this character"
            " the special token wherever it stands, or use another tokenizer."
        )
    added = [
        {**token, "content": names[token["content"]]} if token.get("special") else token
        for token in data.get("added_tokens") or ()
    ]
    model = dict(data["model"])
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): index for token, index in vocabulary.items()}
    else:  # Unigram: pairs of a token and its score
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if names.keys().isdisjoint(_merge_parts(merge))]
    # A post-processor refers to special tokens by name, and is not used in training.
    return {**data, "added_tokens": added, "model": model, "post_processor": None}


def _merge_parts(merge: str | list[str]) -> tuple[str, str, str]:
    """Return the two sides of a BPE merge and what they make."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right, left + right
