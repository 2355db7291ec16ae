"""Text from a network: batched, streamed, the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.data.tokens.tokenizers import Tokenizer
from headrace.generation.text import TextStream
from headrace.models.network import KeyValueCache, Network


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn."""

    max_tokens: int = 200
    temperature: float = 0.8
    """0 takes the likeliest token."""
    top_k: int = 0
    """Only among the k likeliest; 0: all."""
    top_p: float = 1.0
    """Only among the likeliest that together reach this probability."""
    seed: int = 0
    num_samples: int = 1


def generate(
    network: Network, prompt: list[int], sampling: Sampling, end_of_text_id: int
) -> Iterator[list[int | None]]:
    """The next token of every sample, step by step; None once a sample has ended.

    A text that outgrows the network's context slides: the older half is forgotten, the rest is read again.
    """
    context = network.config.context
    device = network.device
    tokens_BT = torch.tensor([prompt[-context:] or [end_of_text_id]] * sampling.num_samples)
    generator = torch.Generator().manual_seed(sampling.seed)
    cache = KeyValueCache(network.config.num_layers)
    new_BT = tokens_BT
    has_ended = torch.zeros(sampling.num_samples, dtype=torch.bool)
    for _ in range(sampling.max_tokens):
        if cache.length + new_BT.shape[1] > context:
            new_BT = tokens_BT[:, -max(1, context // 2) :]
            cache = KeyValueCache(network.config.num_layers)
        with torch.no_grad():
            hidden = network(new_BT.to(device), cache=cache)[:, -1]
            chosen_B = _draw(network.logits(hidden).float().cpu(), sampling, generator)  # one order of numbers anywhere
        yield [None if ended else int(token) for token, ended in zip(chosen_B, has_ended, strict=True)]
        has_ended |= chosen_B == end_of_text_id
        if bool(has_ended.all()):
            return
        new_BT = chosen_B[:, None]
        tokens_BT = torch.cat([tokens_BT, new_BT], dim=1)[:, -context:]


def continue_text(network: Network, tokenizer: Tokenizer, prompt: str, sampling: Sampling) -> str:
    """A prompt and how it goes on, in one sample."""
    ids = [int(token) for token in tokenizer.encode(prompt)] if prompt else []
    stream = TextStream(tokenizer, ids)
    made = (row[0] for row in generate(network, ids, sampling, tokenizer.end_of_text_id))
    return prompt + "".join(stream.add(token) for token in made if token is not None)


def _draw(logits_BV: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    if sampling.temperature == 0:
        return logits_BV.argmax(dim=-1)
    logits_BV = logits_BV / sampling.temperature
    if sampling.top_k:
        least = logits_BV.topk(min(sampling.top_k, logits_BV.shape[-1])).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least, -torch.inf)
    probabilities = logits_BV.softmax(dim=-1)
    if sampling.top_p < 1:
        ordered, places = probabilities.sort(descending=True)
        is_beyond = ordered.cumsum(dim=-1) - ordered >= sampling.top_p
        probabilities = probabilities.scatter(1, places, ordered.masked_fill(is_beyond, 0))
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]
