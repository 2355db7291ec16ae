"""Which tokens share a part."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest

from headrace.data.tokens.relations import shared_parts
from tests.data.tokens.tokenizer_kinds import KINDS, tokenizer_of_kind


def bpe(tokens: list[str], merges: list[list[str]] | list[str]) -> str:
    model = {"type": "BPE", "vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model})


def families(tokens: list[str], text: str) -> set[frozenset[str]]:
    found = shared_parts(text)
    members = defaultdict(set)
    for token, part in zip(found.tokens.tolist(), found.parts.tolist(), strict=True):
        members[part].add(tokens[token])
    assert len(members) == found.num_parts
    return {frozenset(family) for family in members.values()}


@pytest.mark.parametrize("spelled", [list, " ".join], ids=["pairs", "strings"])
def test_tokens_share_the_pieces_that_they_are_merged_from_and_the_word_that_they_spell(spelled: type) -> None:
    tokens = [*"abcABĠ", "ab", "Ġa", "Ġab", "AB", "abc", "cab", "bc"]
    merges = [["a", "b"], ["Ġ", "a"], ["Ġ", "ab"], ["A", "B"], ["ab", "c"], ["c", "ab"], ["b", "c"]]
    assert families(tokens, bpe(tokens, [spelled(merge) for merge in merges])) == {
        frozenset({"a", "A", "Ġa"}),  # words
        frozenset({"b", "B"}),
        frozenset({"ab", "AB", "Ġab"}),
        frozenset({"Ġa", "Ġab"}),  # begin with a space
        frozenset({"Ġab", "cab"}),  # end in ab
        frozenset({"abc", "bc"}),  # end in c
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer_has_parts_or_none(kind: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    found = shared_parts(tokenizer.json)
    assert len(found.tokens) == len(found.parts)
    if len(found.tokens):
        assert found.tokens.max() < tokenizer.vocab_size and found.parts.max() == found.num_parts - 1
        assert (np.bincount(found.parts) > 1).all(), "parts of one token alone tell nothing"


def test_a_vocabulary_without_relations_has_no_parts() -> None:
    assert shared_parts(bpe(["a", "b"], [])).num_parts == 0
