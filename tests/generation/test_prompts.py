"""Prompts that come from a text."""

from __future__ import annotations

import pytest

from headrace.generation.prompts import PROMPT_CHARACTERS, first_prompt, opening_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("end of line\n\n    def f(x):\n        return x + value + value", "    def f(x):\n        return x + value +"),
        ("half a word and many others in one line without end, as in a book", "a word and many others in one line"),
        ("x\nshort text", "short text"),
        ("水車は回る" * 20, ("水車は回る" * 20)[:PROMPT_CHARACTERS]),
        ("", ""),
    ],
)  # fmt: skip
def test_words_of_a_text(text: str, words: str) -> None:
    assert opening_words(text) == words


def test_the_first_text_with_words_is_taken() -> None:
    assert first_prompt(["\n-----\n-----", "x\nreal words are here", "x\nand here"]) == "real words are here"
    assert first_prompt([]) == ""
