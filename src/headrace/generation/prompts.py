"""Prompts for samples: the words of a text that a sample can begin with."""

from __future__ import annotations

from collections.abc import Iterable

PROMPT_CHARACTERS = 40
FEWEST_LETTERS = 8
"""Letters that make words worth going on from; a row of dashes has none."""
BETWEEN_SAMPLES = "\n\n-----\n\n"
"""What stands between the samples of several prompts, where they are one text."""


def opening_words(text: str) -> str:
    """Return some words from the first whole line on, without the space after them; empty if there are none.

    >>> opening_words("d of a line\\nROMEO:\\nBut soft, what light through yonder window breaks?")
    'ROMEO:\\nBut soft, what light through'
    """
    whole_lines = text.partition("\n")[2].lstrip("\r\n")
    if _num_letters(whole_lines) < FEWEST_LETTERS:
        whole_lines = text.partition(" ")[2] or text
    if len(whole_lines) <= PROMPT_CHARACTERS:
        return whole_lines.rstrip()
    words = whole_lines[:PROMPT_CHARACTERS]
    return (words if whole_lines[PROMPT_CHARACTERS].isspace() else _without_last_word(words)).rstrip()


def first_prompt(texts: Iterable[str]) -> str:
    """Return the opening words of the first text that has enough of them, else of the last; empty without texts."""
    words = ""
    for text in texts:
        words = opening_words(text)
        if _num_letters(words) >= FEWEST_LETTERS:
            break
    return words


def _without_last_word(words: str) -> str:
    """Drop what follows the last space; languages that are written without spaces have none, and lose nothing."""
    kept = words.rstrip().rpartition(" ")[0]
    return kept if kept.strip() else words


def _num_letters(text: str) -> int:
    return sum(character.isalpha() for character in text)
