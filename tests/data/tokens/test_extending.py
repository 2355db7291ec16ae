"""New tokens in a tokenizer, and two vocabularies compared."""

from __future__ import annotations

import pytest

from headrace.data.tokens.extending import add_tokens, canonical, first_difference
from headrace.data.tokens.tokenizers import Tokenizer, from_json, load_tokenizer
from headrace.errors import UsageError
from tests.conftest import make_text

TEXT = make_text(20_000)


def tokenizer(spec: str = "bpe:300") -> Tokenizer:
    return load_tokenizer(spec, lambda: iter([TEXT.encode()]))


@pytest.mark.parametrize("spec", ["bpe:300", "byte", "char"])
def test_text_gets_the_new_tokens_and_all_other_ids_stay(spec: str) -> None:
    before = tokenizer(spec)
    after, pieces = add_tokens(before, ["<|user|>", "mill"])
    assert sorted(pieces) == [before.vocab_size, before.vocab_size + 1] and after.vocab_size == before.vocab_size + 2
    assert after.encode("a<|user|>b").tolist() == [
        *before.encode("a").tolist(), before.vocab_size, *before.encode("b").tolist()
    ]  # fmt: skip
    assert after.decode(after.encode("a<|user|>the mills")) == "a<|user|>the mills"
    assert pieces[before.vocab_size + 1] == before.encode("mill").tolist()
    assert after.encode("other words").tolist() == before.encode("other words").tolist()
    assert first_difference(before, after) == ""
    assert "<|user|>" in first_difference(after, before)
    assert after.unbroken == [b"<|user|>", b"mill"]


def test_a_checkpoint_gives_the_same_tokenizer_back() -> None:
    after, _ = add_tokens(canonical(tokenizer()), ["<|user|>"])
    again = from_json(after.spec, after.export_json(), "tokenizer.json")
    assert again.hash == after.hash


def test_a_token_that_is_there_stays_as_it_is() -> None:
    once, _ = add_tokens(tokenizer(), ["<|user|>"])
    twice, pieces = add_tokens(once, ["<|user|>"])
    assert twice is once and pieces == {}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([""], "not empty"), (["New York"], "no white space"), (["a" * 300], "longer"), (["x", "x"], "named twice"),
     (["\ud800"], "not valid Unicode")],
)  # fmt: skip
def test_what_cannot_be_a_token(tokens: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        add_tokens(tokenizer(), tokens)
