"""Generated text goes on where its prompt ends, as the text that was learned would."""

from __future__ import annotations

import pytest

from headrace.generation.text import TextStream
from tests.conftest import make_text
from tests.data.tokens.tokenizer_kinds import KINDS, tokenizer_of_kind

TEXT = make_text(1500, seed=6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt_tokens", [0, 1, 5, 40])
def test_prompt_and_continuation_are_one_text(kind: str, prompt_tokens: int) -> None:
    """Wherever tokens are divided into prompt and continuation, the pieces add up to the text of all."""
    tokenizer = tokenizer_of_kind(kind)
    ids = tokenizer.encode(TEXT).tolist()
    while "\ufffd" in tokenizer.decode(ids[:prompt_tokens]):  # a prompt ends with a whole character
        prompt_tokens += 1
    stream = TextStream(tokenizer, ids[:prompt_tokens])
    pieces = [stream.add(token) for token in ids[prompt_tokens:]]
    assert tokenizer.decode(ids[:prompt_tokens]) + "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_the_space_after_a_prompt_is_kept() -> None:
    for kind in ("llama", "unigram", "bert"):
        tokenizer = tokenizer_of_kind(kind)
        prompt, both = tokenizer.encode("the mill").tolist(), tokenizer.encode("the mill wheel").tolist()
        assert both[: len(prompt)] == prompt
        stream = TextStream(tokenizer, prompt)
        assert "".join(map(stream.add, both[len(prompt) :])) == " wheel"


def test_end_of_text_and_ids_beyond_the_vocabulary_are_no_text() -> None:
    tokenizer = tokenizer_of_kind("byte")
    stream = TextStream(tokenizer, [])
    assert [stream.add(token) for token in (104, tokenizer.end_of_text_id, 999, 105)] == ["h", "", "", "i"]
