"""Generate text with a model: of a run, a folder or the hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.data.tokens.tokenizers import Tokenizer
from headrace.errors import UsageError
from headrace.generation.decoding import generate as decode
from headrace.generation.decoding import ids_without_text
from headrace.generation.sampling import Sampling
from headrace.generation.text import TextStream
from headrace.models.network import Network
from headrace.run.saved_model import load_model


def generate(
    run: str | Path,
    prompt: str | Sequence[str] = "",
    *,
    max_tokens: int = Sampling.max_tokens,
    temperature: float = Sampling.temperature,
    top_k: int = Sampling.top_k,
    top_p: float = Sampling.top_p,
    seed: int = Sampling.seed,
) -> str | list[str]:
    """Return a text that a trained model continues a prompt with, prompt included; for several prompts, a list.

    `run` is a run directory or a checkpoint in one, a folder that transformers saved, or a hub name (OWNER/NAME); the
    model is loaded once for all prompts.

    >>> generate("runs/last", "ROMEO:", max_tokens=100)                                  # doctest: +SKIP
    >>> generate("runs/last", ["ROMEO:", "JULIET:"], temperature=0)                      # doctest: +SKIP
    """
    sampling = Sampling(max_tokens, temperature, top_k, top_p, seed)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    check_prompts(prompts)
    model = load_model(run)
    texts = [start + "".join(piece for (piece,) in stream_text(model, start, sampling)) for start in prompts]
    return texts[0] if isinstance(prompt, str) else texts


def check_prompts(prompts: Sequence[str]) -> None:
    """Refuse a prompt that is not text, before anything is loaded or printed."""
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the prompt {prompt!r} is not valid UTF-8. Type it again, or write it in a file."
            ) from None


def stream_text(model: tuple[Network, Tokenizer], prompt: str, sampling: Sampling) -> Iterator[list[str]]:
    """Yield the new text of each sample, token by token; a character of several tokens comes when it is whole."""
    network, tokenizer = model
    ids = [int(token) for token in tokenizer.encode(prompt)]
    streams = [TextStream(tokenizer, ids) for _ in range(sampling.num_samples)]
    never = ids_without_text(tokenizer, network.config.vocab_size)
    for row in decode(network, ids, sampling, tokenizer.end_of_text_id, never):
        yield ["" if token is None else stream.add(token) for stream, token in zip(streams, row, strict=True)]
