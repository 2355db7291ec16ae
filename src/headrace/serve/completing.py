"""Completing prompts step by step: text, log-probabilities and ends of all samples, and nothing about HTTP."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import torch
from torch import Tensor

from headrace.data.tokens.tokenizers import Tokenizer
from headrace.generation.decoding import generate_with_logits, ids_without_text
from headrace.generation.sampling import Sampling
from headrace.generation.text import REPLACEMENT, TextStream
from headrace.models.network import Network
from headrace.serve.api import ApiError, CompletionRequest
from headrace.serve.stops import StopFilter

Model = tuple[Network, Tokenizer]


@dataclass(frozen=True)
class TokenScore:
    """How likely one token of a text was."""

    token: str
    log_probability: float | None
    """None for the first token of a prompt, which nothing comes before."""
    alternatives: dict[str, float] | None
    """The likeliest tokens at this place."""


@dataclass(frozen=True)
class Delta:
    """What one step added to one text."""

    index: int
    """The number of the text among all that the request asked for."""
    text: str = ""
    scores: tuple[TokenScore, ...] = ()
    finish_reason: str | None = None
    num_tokens: int = 0


def encode_prompts(model: Model, request: CompletionRequest) -> list[list[int]]:
    """Return the tokens of the prompts; one that does not fit into the network's context is an error."""
    network, tokenizer = model
    context, vocab_size = network.config.context, tokenizer.vocab_size
    found: list[list[int]] = []
    for prompt in request.prompts:
        ids = [int(token) for token in tokenizer.encode(prompt)] if isinstance(prompt, str) else prompt
        if len(ids) > context:
            message = f"the prompt has {len(ids):,} tokens, and this model reads {context:,} at most. Shorten it."
            raise ApiError(HTTPStatus.BAD_REQUEST, message, "context_length_exceeded", "prompt")
        if max(ids, default=0) >= vocab_size:
            message = f"the prompt has a token {max(ids):,}; this model's tokens are 0 to {vocab_size - 1:,}"
            raise ApiError(HTTPStatus.BAD_REQUEST, message, param="prompt")
        found.append(ids)
    return found


def complete(model: Model, prompts: list[list[int]], request: CompletionRequest) -> Generator[list[Delta]]:
    """Yield what each step adds to the texts; prompts are completed one after the other, each in `n` samples at once.

    Every text ends with a delta that has a reason, unless the caller stops iterating before.
    """
    seed = secrets.randbits(62) if request.seed is None else request.seed
    sampling = Sampling(
        request.max_tokens, request.temperature, request.top_k, request.top_p, seed, num_samples=request.n
    )
    for number, ids in enumerate(prompts):
        yield from _complete_one(model, ids, request, sampling, first=number * request.n)


def _complete_one(
    model: Model, ids: list[int], request: CompletionRequest, sampling: Sampling, first: int
) -> Iterator[list[Delta]]:
    network, tokenizer = model
    samples = [_Sample(first + row, TextStream(tokenizer, ids), StopFilter(request.stops)) for row in range(request.n)]
    never = ids_without_text(tokenizer, network.config.vocab_size)
    if request.echo:
        scores = _prompt_scores(model, ids, request.logprobs, never) if request.logprobs is not None else ()
        text = tokenizer.decode(ids)
        yield [Delta(sample.index, text, scores) for sample in samples]
    if not sampling.max_tokens:
        yield [Delta(sample.index, finish_reason="length") for sample in samples]
        return
    for tokens, logits_BV in generate_with_logits(network, ids, sampling, tokenizer.end_of_text_id, never):
        deltas = []
        for sample, token, logits_V in zip(samples, tokens, logits_BV, strict=True):
            if token is not None and not sample.has_ended:
                scores = () if request.logprobs is None else (_score(tokenizer, logits_V, token, request.logprobs),)
                deltas.append(sample.add(token, tokenizer.end_of_text_id, scores, sampling.max_tokens))
        yield deltas
        if all(sample.has_ended for sample in samples):
            return


@dataclass
class _Sample:
    """One text while it grows."""

    index: int
    stream: TextStream
    stops: StopFilter
    num_tokens: int = field(default=0)
    has_ended: bool = False

    def add(self, token: int, end_of_text_id: int, scores: tuple[TokenScore, ...], most: int) -> Delta:
        """Add a token; return the text that is certain now, and why the text ends, if it does."""
        self.num_tokens += 1
        text = self.stops.add(self.stream.add(token))
        reason = None
        if self.stops.has_stopped or token == end_of_text_id:
            reason = "stop"
        elif self.num_tokens == most:
            reason = "length"
        if reason and not self.stops.has_stopped:
            text += self.stops.rest()
        self.has_ended = reason is not None
        return Delta(self.index, text, scores, reason, num_tokens=1)


def _prompt_scores(model: Model, ids: list[int], num_likeliest: int, never: list[int]) -> tuple[TokenScore, ...]:
    """Return the scores of a prompt's tokens, computed in one pass."""
    network, tokenizer = model
    if not ids:
        return ()
    scores = [TokenScore(spell(tokenizer, ids[0]), None, None)]
    with torch.no_grad():
        hidden_TD = network(torch.tensor([ids], device=network.device))[0]
        for hidden_D, token in zip(hidden_TD[:-1], ids[1:], strict=True):
            logits_V = network.logits(hidden_D).float().cpu()
            logits_V[[index for index in never if index != token]] = -torch.inf
            scores.append(_score(tokenizer, logits_V, token, num_likeliest))
    return tuple(scores)


def _score(tokenizer: Tokenizer, logits_V: Tensor, token: int, num_likeliest: int) -> TokenScore:
    values_V = logits_V.log_softmax(dim=-1)
    alternatives: dict[str, float] = {}
    if num_likeliest:
        values, ids = values_V.topk(min(num_likeliest, len(values_V)))
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        alternatives = {spell(tokenizer, index): value for index, value in pairs if value > -torch.inf}
    return TokenScore(spell(tokenizer, token), float(values_V[token]), alternatives)


def spell(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of one token; one that is a part of a character is named by its number."""
    text = tokenizer.decode([token])
    return f"token:{token}" if not text or REPLACEMENT in text else text


def logprobs_json(scores: tuple[TokenScore, ...], offset: int) -> dict[str, Any]:
    """Return the scores of some tokens as OpenAI's interface has them; `offset` is where their text begins."""
    offsets = []
    for score in scores:
        offsets.append(offset)
        offset += len(score.token)
    return {
        "tokens": [score.token for score in scores],
        "token_logprobs": [score.log_probability for score in scores],
        "top_logprobs": [score.alternatives for score in scores],
        "text_offset": offsets,
    }
