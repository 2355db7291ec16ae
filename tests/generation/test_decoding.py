"""Decoding: samples end, slide beyond the context, and depend on nothing but the seed."""

from __future__ import annotations

from itertools import pairwise

import torch

from headrace.generation.decoding import generate, text_pieces
from headrace.generation.sampling import Sampling
from headrace.models.config import ModelConfig
from headrace.models.network import Network, build
from tests.data.tokens.tokenizer_kinds import tokenizer_of_kind

END = 256


def small(context: int = 16) -> Network:
    shape = ModelConfig(d_model=32, num_heads=2, num_layers=2, vocab_size=257, context=context)
    return build(shape, seed=1).eval()


def test_the_seed_decides_and_samples_differ() -> None:
    def rows(seed: int) -> list[list[int | None]]:
        return list(generate(small(), [1, 2], Sampling(max_tokens=8, temperature=1.0, seed=seed, num_samples=3), END))

    assert rows(0) == rows(0) != rows(1)
    assert len({tuple(sample) for sample in zip(*rows(0), strict=True)}) == 3


def test_a_text_goes_on_beyond_the_context() -> None:
    network = small(context=8)
    tokens = [row[0] for row in generate(network, list(range(20)), Sampling(max_tokens=20, temperature=0), END)]
    assert len(tokens) == 20
    assert all(token is not None and 0 <= token < 257 for token in tokens)


def test_the_same_seed_gives_the_same_text_and_long_texts_slide() -> None:
    network = build(ModelConfig(d_model=64, num_heads=4, num_layers=2, vocab_size=400, context=32), seed=1)
    sampling = Sampling(max_tokens=80, temperature=1.0, top_k=50, top_p=0.9, seed=5, num_samples=3)
    texts = [list(generate(network, list(range(50)), sampling, 399)) for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(texts[0][0]) == 3


def test_each_token_is_the_likeliest_after_those_before() -> None:
    """What the key-value cache remembers is what the network would compute anew."""
    network, prompt = small(), [5, 6, 7]
    made = [row[0] for row in generate(network, prompt, Sampling(max_tokens=6, temperature=0), END)]
    text = prompt + [token for token in made if token is not None]
    with torch.no_grad():
        likeliest = network.logits(network(torch.tensor([text])))[0].argmax(dim=-1).tolist()
    for place, (_, following) in enumerate(pairwise(text)):
        if place >= len(prompt) - 1:
            assert following == likeliest[place]


def test_a_sample_that_has_ended_gives_nothing_more() -> None:
    first = next(generate(small(), [1], Sampling(max_tokens=1, temperature=0), END))[0]
    assert first is not None
    assert list(generate(small(), [1], Sampling(max_tokens=9, temperature=0), end_of_text_id=first)) == [[first]]


def test_a_text_comes_piece_by_piece_without_its_prompt() -> None:
    sampling = Sampling(max_tokens=4, temperature=1.0)
    pieces = list(text_pieces(small(), tokenizer_of_kind("byte"), "the mill", sampling))
    assert len(pieces) == 4
    assert not "".join(pieces).startswith("the mill")
