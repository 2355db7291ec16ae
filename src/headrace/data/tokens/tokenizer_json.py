"""A tokenizer.json that somebody else wrote: read within limits, checked before use, and asked what it does to text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.errors import TokenizerError

# The largest vocabularies in use (260,000 tokens) take some 35 MB.
MAXIMUM_FILE_BYTES = 64 << 20
MAXIMUM_ID = (1 << 24) - 1

# What these do to text cannot be undone by decoding.
_LOSSY_NORMALIZERS = {
    "NFC": "composes characters",
    "NFD": "decomposes characters",
    "NFKC": "replaces characters by compatible ones",
    "NFKD": "replaces characters by compatible ones",
    "Lowercase": "lowercases",
    "StripAccents": "strips accents",
    "Strip": "strips white space",
    "Nmt": "cleans up control characters and white space",
    "Precompiled": "replaces characters by compatible ones",
    "BertNormalizer": "cleans up control characters and white space",
    "Replace": "replaces text",
}
_LOSSY_PRE_TOKENIZERS = ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit")


def read_tokenizer_file(path: Path) -> str:
    """Read the text of a tokenizer.json; a file that cannot be one is refused before all of it is in memory."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAXIMUM_FILE_BYTES + 1)
        if len(raw) > MAXIMUM_FILE_BYTES:
            raise TokenizerError(f"{path}: larger than {MAXIMUM_FILE_BYTES >> 20} MiB, which no tokenizer.json is.")
        return raw.decode("utf-8")
    except OSError as problem:
        raise TokenizerError(f"{path}: cannot be read ({problem.strerror}).") from None
    except UnicodeDecodeError as problem:
        raise TokenizerError(f"{path}: not UTF-8 (byte {problem.start:,}), so not a tokenizer.json.") from None


def parse_tokenizer(text: str, where: str = "tokenizer.json") -> dict[str, Any]:
    """Parse a tokenizer.json; one that is nested too deep, has no vocabulary or would end the process is refused."""
    try:
        data = json.loads(text)
        vocabulary = data["model"]["vocab"]
    except RecursionError:
        raise _not_a_tokenizer(where, "nested too deep") from None
    except (ValueError, TypeError, KeyError) as problem:
        reason = f"no {problem}" if isinstance(problem, KeyError) else str(problem)
        raise _not_a_tokenizer(where, reason) from None
    if not isinstance(vocabulary, dict | list):
        raise _not_a_tokenizer(where, "its vocabulary is neither a list nor a mapping")
    _check_merges(data["model"], where)
    return dict(data)


def make_backend(text: str, where: str = "tokenizer.json") -> Any:
    """Return the Hugging Face tokenizer of a tokenizer.json; anything wrong with it is one error."""
    from tokenizers import Tokenizer

    parse_tokenizer(text, where)
    try:
        backend = Tokenizer.from_str(text)
    except Exception as problem:  # tokenizers raises bare Exception
        raise _not_a_tokenizer(where, str(problem)) from None
    largest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if not 0 <= largest <= MAXIMUM_ID:
        raise _not_a_tokenizer(where, "no tokens" if largest < 0 else f"the token id {largest:,} is absurd")
    return backend


def switch_off_lengths(backend: Any) -> list[str]:
    """Switch off truncation and padding in a Hugging Face tokenizer; return what was on, as sentences for the user."""
    notices = []
    if backend.truncation is not None:
        length = backend.truncation["max_length"]
        backend.no_truncation()
        notices.append(f"truncation to {length:,} tokens, set in the tokenizer.json, is switched off")
    if backend.padding is not None:
        backend.no_padding()
        notices.append("padding, set in the tokenizer.json, is switched off")
    return notices


def text_losses(data: dict[str, Any]) -> list[str]:
    """Return what a parsed tokenizer.json does to text that decoding cannot undo, as sentences for the user."""
    losses = []
    for part in components(data.get("normalizer"), "normalizers"):
        kind = part.get("type")
        does = [_LOSSY_NORMALIZERS[kind]] if kind in _LOSSY_NORMALIZERS else []
        if kind == "Replace" and len(part.get("content", "")) == 1 and part.get("pattern") == {"String": " "}:
            continue  # SentencePiece's visible space: its decoder undoes it
        if kind == "BertNormalizer":
            lowercase = part.get("lowercase", True)
            strips = part.get("strip_accents")
            does += ["lowercases"] * lowercase + ["strips accents"] * (lowercase if strips is None else strips)
        if does:
            losses.append(f"its normalizer {kind} {_listed(does)}: the model never sees the text as it was written")
    return losses + [
        f"its pre-tokenizer {part.get('type')} drops white space or what stands between words"
        for part in components(data.get("pre_tokenizer"), "pretokenizers")
        if part.get("type") in _LOSSY_PRE_TOKENIZERS or part.get("behavior") == "Removed"
    ]


def components(component: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return a normalizer, pre-tokenizer or decoder as a list, also where it is a sequence of them."""
    if not component:
        return []
    if component.get("type") != "Sequence":
        return [component]
    return [part for inner in component.get(key) or () for part in components(inner, key)]


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _check_merges(model: dict[str, Any], where: str) -> None:
    """Refuse a prefix that merges do not have: tokenizers would end the whole process over it."""
    prefix = model.get("continuing_subword_prefix")
    if model.get("type") != "WordPiece" and prefix and isinstance(prefix, str):
        for merge in model.get("merges") or ():
            right = merge.split(" ")[-1] if isinstance(merge, str) else merge[-1] if merge else ""
            if not isinstance(right, str) or not right.startswith(prefix):
                raise _not_a_tokenizer(where, f"a merge of {right!r} lacks the continuing_subword_prefix {prefix!r}")


def _not_a_tokenizer(where: str, reason: str) -> TokenizerError:
    return TokenizerError(f"{where}: not a Hugging Face tokenizer.json ({reason}).")
