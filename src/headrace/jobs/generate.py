"""Generate text from a run or a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.data.tokens.tokenizers import Tokenizer
from headrace.generation.decoding import generate, ids_without_text
from headrace.generation.sampling import Sampling
from headrace.generation.text import TextStream
from headrace.models.network import Network


def stream_text(model: tuple[Network, Tokenizer], prompt: str, sampling: Sampling) -> Iterator[list[str]]:
    """Yield the new text of each sample, token by token; a character of several tokens comes when it is whole."""
    network, tokenizer = model
    ids = [int(token) for token in tokenizer.encode(prompt)]
    streams = [TextStream(tokenizer, ids) for _ in range(sampling.num_samples)]
    never = ids_without_text(tokenizer, network.config.vocab_size)
    for row in generate(network, ids, sampling, tokenizer.end_of_text_id, never):
        yield ["" if token is None else stream.add(token) for stream, token in zip(streams, row, strict=True)]
