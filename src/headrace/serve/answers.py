"""Completions as HTTP answers: one JSON object, or a stream of server-sent events."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.serve.api import CompletionRequest, choice, completion, usage
from headrace.serve.completing import Delta, TokenScore, logprobs_json

END_OF_STREAM = b"data: [DONE]\n\n"


def new_head(model: str) -> dict[str, Any]:
    """Return the fields that all parts of one completion share."""
    return {"id": f"cmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}


def whole_answer(
    head: dict[str, Any], request: CompletionRequest, num_prompt_tokens: int, steps: Iterable[list[Delta]]
) -> dict[str, Any]:
    """Return a completion as one object, once all its steps are computed."""
    texts: dict[int, str] = {}
    scores: dict[int, list[TokenScore]] = {}
    reasons: dict[int, str | None] = {}
    num_tokens = 0
    for delta in (delta for deltas in steps for delta in deltas):
        texts[delta.index] = texts.get(delta.index, "") + delta.text
        scores.setdefault(delta.index, []).extend(delta.scores)
        reasons[delta.index] = delta.finish_reason
        num_tokens += delta.num_tokens
    choices = [
        choice(index, texts[index], _logprobs(request, tuple(scores[index]), 0), reasons[index])
        for index in sorted(texts)
    ]
    return completion(head, choices, usage(num_prompt_tokens, num_tokens))


def events(
    head: dict[str, Any], request: CompletionRequest, num_prompt_tokens: int, steps: Iterable[list[Delta]]
) -> Iterator[bytes]:
    """Yield a completion as events while it is computed; steps that add nothing to show give none."""
    offsets: dict[int, int] = {}
    num_tokens = 0
    for delta in (delta for deltas in steps for delta in deltas):
        num_tokens += delta.num_tokens
        offset = offsets.get(delta.index, 0)
        offsets[delta.index] = offset + sum(len(score.token) for score in delta.scores)
        if delta.text or delta.scores or delta.finish_reason:
            logprobs = _logprobs(request, delta.scores, offset)
            yield _event(completion(head, [choice(delta.index, delta.text, logprobs, delta.finish_reason)], None))
    if request.stream_options and request.stream_options.include_usage:
        yield _event(completion(head, [], usage(num_prompt_tokens, num_tokens)))
    yield END_OF_STREAM


def _logprobs(request: CompletionRequest, scores: tuple[TokenScore, ...], offset: int) -> dict[str, Any] | None:
    return None if request.logprobs is None else logprobs_json(scores, offset)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
