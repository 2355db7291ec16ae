"""New tokens in the vocabulary of a tokenizer, and the comparison of two vocabularies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.data.tokens.tokenizer_json import make_backend
from headrace.data.tokens.tokenizers import Tokenizer, from_json
from headrace.errors import UsageError

MOST_CHARACTERS = 256


def canonical(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer as a checkpoint holds it, so that it has the same hash when it is read from there again."""
    found = from_json(tokenizer.spec, tokenizer.export_json(), tokenizer.spec)
    return replace(found, special_tokens_in_text=tokenizer.special_tokens_in_text, notices=tokenizer.notices)


def add_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> tuple[Tokenizer, dict[int, list[int]]]:
    """Return a tokenizer with more tokens, and for each new id the ids that its text had before.

    Text gets them wherever it spells them. A token that is there already stays as it is.
    """
    _check(tokens)
    from tokenizers import AddedToken

    backend: Any = make_backend(tokenizer.json)
    vocabulary = backend.get_vocab(with_added_tokens=True)
    fresh = [token for token in tokens if token not in vocabulary]
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in fresh])
    pieces: dict[int, list[int]] = {}
    taken = set(vocabulary.values())
    for token in fresh:
        index = int(backend.token_to_id(token))
        if index in taken:
            raise UsageError(
                f"model.new_tokens {token!r}: the ids of the tokenizer {tokenizer.spec} have gaps, so it takes no new"
                " tokens."
            )
        pieces[index] = [int(piece) for piece in tokenizer.encode(token)]
    if not fresh:
        return tokenizer, {}
    extended = from_json(tokenizer.spec, backend.to_str(), tokenizer.spec)
    extended = replace(extended, special_tokens_in_text=tokenizer.special_tokens_in_text, notices=tokenizer.notices)
    return canonical(extended), pieces


def first_difference(tokenizer: Tokenizer, other: Tokenizer) -> str:
    """Say which token of a tokenizer has another id in another one; empty if there is none."""
    theirs = make_backend(other.json).get_vocab(with_added_tokens=True)
    own = make_backend(tokenizer.json).get_vocab(with_added_tokens=True)
    for token, index in sorted(own.items(), key=lambda item: item[1]):
        if theirs.get(token) != index:
            found = theirs.get(token)
            return f"{token!r} is {index:,} in one, and {'not there' if found is None else f'{found:,}'} in the other"
    return ""


def _check(tokens: Sequence[str]) -> None:
    """Refuse what cannot be a new token."""
    for number, token in enumerate(tokens):
        name = f"model.new_tokens {token!r:.80}"
        if not token or any(character.isspace() for character in token):
            raise UsageError(f"{name}: a new token is not empty and has no white space in it, where text may be cut.")
        if len(token) > MOST_CHARACTERS:
            raise UsageError(f"{name}: longer than {MOST_CHARACTERS} characters.")
        if token in tokens[:number]:
            raise UsageError(f"{name}: named twice.")
        try:
            token.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{name}: not valid Unicode text.") from None
