"""Decoding with a key-value cache: batched, streamed, and the same text for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headrace.data.tokens.tokenizers import Tokenizer
from headrace.generation.sampling import Sampling, draw
from headrace.generation.text import TextStream
from headrace.models.attention import KeyValueCache
from headrace.models.network import Network


def ids_without_text(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Return the ids that no text is made of: special tokens but end-of-text, and ids that a larger network adds."""
    special = [index for index in tokenizer.special_tokens.values() if index != tokenizer.end_of_text_id]
    return sorted({*special, *range(tokenizer.vocab_size, vocab_size)})


def generate(
    network: Network, prompt: list[int], sampling: Sampling, end_of_text_id: int, never: Sequence[int] = ()
) -> Iterator[list[int | None]]:
    """Yield the next token of every sample, step by step; None once a sample has ended. Ids in `never` are not drawn.

    When a text outgrows the network's context, its older half is forgotten and the rest is read again.
    """
    for tokens, _ in generate_with_logits(network, prompt, sampling, end_of_text_id, never):
        yield tokens


def generate_with_logits(
    network: Network, prompt: list[int], sampling: Sampling, end_of_text_id: int, never: Sequence[int] = ()
) -> Iterator[tuple[list[int | None], Tensor]]:
    """Yield what `generate` does, each step with the logits (samples, vocabulary) that its tokens were drawn from."""
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
            logits_BV = network.logits(hidden).float().cpu()  # one order of random numbers on any device
            logits_BV[:, list(never)] = -torch.inf
            chosen_B = draw(logits_BV, sampling, generator)
        yield [None if ended else int(token) for token, ended in zip(chosen_B, has_ended, strict=True)], logits_BV
        has_ended |= chosen_B == end_of_text_id
        if bool(has_ended.all()):
            return
        new_BT = chosen_B[:, None]
        tokens_BT = torch.cat([tokens_BT, new_BT], dim=1)[:, -context:]


def text_pieces(network: Network, tokenizer: Tokenizer, prompt: str, sampling: Sampling) -> Iterator[str]:
    """Yield the continuation of a prompt token by token, as one sample; a token inside a character adds no text yet."""
    ids = [int(token) for token in tokenizer.encode(prompt)] if prompt else []
    stream = TextStream(tokenizer, ids)
    never = ids_without_text(tokenizer, network.config.vocab_size)
    for (token,) in generate(network, ids, sampling, tokenizer.end_of_text_id, never):
        if token is not None:
            yield stream.add(token)
