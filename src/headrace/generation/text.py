"""Turning tokens into text as they come: decoded in their context, and no character before it is whole."""

from __future__ import annotations

from headrace.data.tokens.tokenizers import Tokenizer

REPLACEMENT = "\ufffd"


class TextStream:
    """The text of a growing list of tokens, piece by piece.

    Tokens are decoded together with those before them, because decoders treat the first token of a text in their own
    way: SentencePiece's drop its space.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: list[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt)
        self._context = 0
        """Index of the first token that is decoded as context of the new ones."""
        self._shown = len(prompt)
        """Number of tokens that have been returned as text."""

    def add(self, token: int) -> str:
        """Add a token; return the text that it completes, which is none inside a character of several tokens."""
        if token == self._tokenizer.end_of_text_id or token >= self._tokenizer.vocab_size:
            return ""
        self._ids.append(token)
        before = self._tokenizer.decode(self._ids[self._context : self._shown])
        text = self._tokenizer.decode(self._ids[self._context :])
        if len(text) <= len(before) or text.endswith(REPLACEMENT):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return text[len(before) :]
