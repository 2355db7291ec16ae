"""Completions without HTTP: text, ends, log-probabilities and prompts."""

from __future__ import annotations

import math

import pytest
import torch

from headrace.generation.decoding import generate, ids_without_text
from headrace.generation.sampling import Sampling
from headrace.serve.api import ApiError, CompletionRequest, parse_completion
from headrace.serve.completing import Delta, complete, encode_prompts, logprobs_json
from tests.serve.served import CONTEXT, tiny_model

MODEL = tiny_model()


def run(**asked: object) -> list[Delta]:
    request = CompletionRequest.model_validate(asked)
    return [delta for deltas in complete(MODEL, encode_prompts(MODEL, request), request) for delta in deltas]


def text_of(deltas: list[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def test_the_tokens_are_those_of_generate() -> None:
    network, tokenizer = MODEL
    sampling = Sampling(max_tokens=60, temperature=0.7, top_k=20, top_p=0.9, seed=5)
    never = ids_without_text(tokenizer, network.config.vocab_size)
    ids = [int(i) for i in tokenizer.encode("the ")]
    alone = [row[0] for row in generate(network, ids, sampling, tokenizer.end_of_text_id, never)]
    asked = {"prompt": "the ", "max_tokens": 60, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "seed": 5}
    deltas = run(**asked, logprobs=0)
    assert sum(delta.num_tokens for delta in deltas) == len(alone)
    by_ids = run(**{**asked, "prompt": ids}, logprobs=0)
    assert text_of(by_ids) == text_of(deltas)


def test_every_text_ends_once_with_a_reason() -> None:
    deltas = run(prompt=["a", "b"], n=2, max_tokens=5, seed=1)
    ends = [(delta.index, delta.finish_reason) for delta in deltas if delta.finish_reason]
    assert sorted(ends) == [(0, "length"), (1, "length"), (2, "length"), (3, "length")]
    assert [delta.finish_reason for delta in run(prompt="a", max_tokens=0)] == ["length"]


def test_a_stop_sequence_ends_a_text_before_itself() -> None:
    whole = text_of(run(prompt="a", max_tokens=40, seed=3))
    stop = whole[10:13]
    deltas = run(prompt="a", max_tokens=40, seed=3, stop=[stop, "never in it"])
    assert text_of(deltas) == whole[: whole.index(stop)]
    assert deltas[-1].finish_reason == "stop"
    assert text_of(run(prompt="a", max_tokens=40, seed=3, stop=whole[-1] + "x")) == whole


def test_log_probabilities_are_the_networks() -> None:
    network, tokenizer = MODEL
    deltas = run(prompt="abc", echo=True, logprobs=3, max_tokens=2, temperature=0)
    scores = [score for delta in deltas for score in delta.scores]
    ids = [int(i) for i in tokenizer.encode("abc")]
    with torch.no_grad():
        logits = network.logits(network(torch.tensor([ids]))[0])
        logits[:, ids_without_text(tokenizer, network.config.vocab_size)] = -torch.inf
        expected = logits.log_softmax(-1)
    assert scores[0].log_probability is None
    for place, token in enumerate(ids[1:]):
        assert scores[place + 1].log_probability == pytest.approx(float(expected[place, token]), abs=1e-4)
    assert scores[3].log_probability == pytest.approx(float(expected[-1].max()), abs=1e-4)
    assert scores[3].alternatives
    assert max(scores[3].alternatives.values()) == scores[3].log_probability
    whole = logprobs_json(tuple(scores), 0)
    assert len(whole["tokens"]) == len(whole["top_logprobs"]) == len(whole["text_offset"]) == 5
    assert all(math.isfinite(value) for value in whole["token_logprobs"][1:])


def test_prompts_that_do_not_fit_are_refused() -> None:
    assert text_of(run(prompt="x" * CONTEXT, max_tokens=3, logprobs=0, echo=True))[:CONTEXT] == "x" * CONTEXT
    with pytest.raises(ApiError, match="33 tokens, and this model reads 32"):
        run(prompt="x" * (CONTEXT + 1))
    with pytest.raises(ApiError, match="token 100,000"):
        run(prompt=[100_000])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"temprature": 1}', "temprature: headrace serve does not know this field"),
        (b'{"temperature": NaN}', "temperature"),
        (b'{"max_tokens": 1000000}', "max_tokens"),
        (b'{"n": 100}', "n: "),
        (b'{"prompt": ["a", "b"], "n": 16}', "1 to 16 texts"),
        (b'{"prompt": []}', "1 to 16 texts"),
        (b'{"prompt": [[-1]]}', "prompt: "),
        (b'{"prompt": {"a": 1}}', "prompt: "),
        (b'{"suffix": "x"}', "suffix: "),
        (b'{"logit_bias": {"50256": -100}}', "logit_bias: "),
        (b'{"presence_penalty": 1}', "presence_penalty: "),
    ],
)
def test_what_cannot_be_answered_is_named(body: bytes, message: str) -> None:
    with pytest.raises(ApiError) as problem:
        parse_completion(body)
    assert problem.value.status == 400
    assert message in str(problem.value)
