"""Generate text from a run or a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.data.tokens.tokenizer_json import read_tokenizer_file
from headrace.data.tokens.tokenizers import Tokenizer, from_json
from headrace.errors import CheckpointError, UsageError
from headrace.generation.decoding import generate as decode
from headrace.generation.decoding import ids_without_text
from headrace.generation.sampling import Sampling
from headrace.generation.text import TextStream
from headrace.models.counts import count
from headrace.models.network import Network, build
from headrace.run.resume import read_saved_model
from headrace.training.checkpoint import Checkpoints
from headrace.training.restore import STATE, check_weights_fill, load_weights


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

    `run` is a run directory or a checkpoint in one; the model is loaded once for all prompts.

    >>> generate("runs/last", "ROMEO:", max_tokens=100)                                  # doctest: +SKIP
    >>> generate("runs/last", ["ROMEO:", "JULIET:"], temperature=0)                      # doctest: +SKIP
    """
    sampling = Sampling(max_tokens, temperature, top_k, top_p, seed)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    check_prompts(prompts)
    model = load_model(Path(run))
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


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint at a path, or the best (else the last) checkpoint of the run at it."""
    if (path / STATE).exists():
        return path
    for name in ("best", "last"):
        if (path / "checkpoints" / name).is_symlink() and (found := Checkpoints(path / "checkpoints").find(name)):
            return found
    if not path.exists():
        raise CheckpointError(f"{path}: no such run. Make it with: headrace train --out {path}")
    raise CheckpointError(f"{path}: no checkpoint here yet. Wait until the run has saved one.")


def load_model(path: Path) -> tuple[Network, Tokenizer]:
    """Load the network and the tokenizer of a run or a checkpoint."""
    checkpoint = find_checkpoint(path)
    config = read_saved_model(checkpoint).config
    model = config.model
    check_weights_fill(checkpoint, count(model, model.context).num_parameters)
    network = build(model)
    load_weights(checkpoint, network)
    file = checkpoint / "tokenizer.json"
    tokenizer = from_json(config.data.tokenizer, read_tokenizer_file(file), str(file))
    return network.eval(), replace(tokenizer, special_tokens_in_text=config.data.special_tokens_in_text)


def stream_text(model: tuple[Network, Tokenizer], prompt: str, sampling: Sampling) -> Iterator[list[str]]:
    """Yield the new text of each sample, token by token; a character of several tokens comes when it is whole."""
    network, tokenizer = model
    ids = [int(token) for token in tokenizer.encode(prompt)]
    streams = [TextStream(tokenizer, ids) for _ in range(sampling.num_samples)]
    never = ids_without_text(tokenizer, network.config.vocab_size)
    for row in decode(network, ids, sampling, tokenizer.end_of_text_id, never):
        yield ["" if token is None else stream.add(token) for stream, token in zip(streams, row, strict=True)]
