"""`headrace generate`: writes text with a trained model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.arguments import AsJson
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.generation.sampling import Sampling
from headrace.jobs.generate import stream_text
from headrace.models.network import Network
from headrace.run.saved_model import load_model


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or a checkpoint in one.")],
    prompt: Annotated[
        list[str] | None, typer.Option(help="The text to continue; repeat the option for several prompts.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate for each text.")] = 200,
    temperature: Annotated[
        float, typer.Option(help="Randomness of the draws; 0 always takes the likeliest token.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest tokens; 0: from all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Draw from the likeliest tokens that together reach this probability.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Seed of the draws; the same seed gives the same text.")
    ] = 0,
    num_samples: Annotated[int, typer.Option(min=1, help="Number of texts to generate for each prompt.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Generate text with a trained model."""
    sampling = Sampling(max_tokens, temperature, top_k, top_p, seed, num_samples)
    prompts = prompt or [""]
    model = load_model(run)
    texts: list[str] = []
    for number, start in enumerate(prompts):
        if number and not as_json:
            sys.stdout.write("---\n")
        texts += _continue(model, start, sampling, is_shown=not as_json)
    if as_json:
        asked = {"prompt": prompts[0]} if len(prompts) == 1 else {"prompts": prompts}
        typer.echo(json.dumps({"run": str(run), **asked, "samples": texts}))


def _continue(model: tuple[Network, Tokenizer], prompt: str, sampling: Sampling, is_shown: bool) -> list[str]:
    """Return samples that continue a prompt; a single one is printed while it is generated."""
    texts = [prompt] * sampling.num_samples
    streams = is_shown and sampling.num_samples == 1
    if streams:
        sys.stdout.write(prompt)
    for pieces in stream_text(model, prompt, sampling):
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        if streams:
            sys.stdout.write(pieces[0])
            sys.stdout.flush()
    if is_shown:
        sys.stdout.write("\n" if streams else "\n---\n".join(texts) + "\n")
    return texts
