"""What a long job is doing at this moment, said to whoever shows it to a person.

Jobs take an `Activity` as they take `should_stop`, and call it with a few words at the beginning of everything that can
take more than a moment: "reading the corpus", "training the tokenizer bpe:16000".
"""

from __future__ import annotations

from collections.abc import Callable

Activity = Callable[[str], None]
"""A function that takes what begins now, in a few words without a full stop."""


def ignore(_doing: str) -> None:
    """Show nothing: the activity of callers that have no screen."""
