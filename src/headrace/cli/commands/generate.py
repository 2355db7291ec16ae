"""`headrace generate`: writes text with a trained model, for prompts that are given, piped in, or typed one by one."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import display
from headrace.cli.arguments import AsJson, Model, newest_run
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.generation.sampling import Sampling

Continue = Callable[[str, "Sampling"], Iterator[list[str]]]
"""Yields the new pieces of each sample that continues a prompt."""


def generate(
    run: Model = "",
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="The text to continue; repeat the option for several. Default: each line of standard input, or a"
            " prompt to type at in a terminal."
        ),
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
    """Generate text with a trained model. In a terminal, without --prompt, it continues what you type, line by line."""
    with display.loading(in_plain_lines=False):
        from headrace.generation.sampling import Sampling
        from headrace.jobs.generate import check_prompts, stream_text
        from headrace.run.saved_model import load_model

    sampling = Sampling(max_tokens, temperature, top_k, top_p, seed, num_samples)
    check_prompts(prompt or [])
    run = _named_model(run)
    model = load_model(run)

    def continue_text(start: str, how: Sampling) -> Iterator[list[str]]:
        check_prompts([start])
        return stream_text(model, start, how)

    if not prompt and not as_json and sys.stdin is not None and sys.stdin.isatty():
        _converse(continue_text, sampling)
        return
    prompts: list[str] = []
    texts: list[str] = []
    for start in prompt or _piped_prompts():
        if prompts and not as_json:
            sys.stdout.write("---\n")
        prompts.append(start)
        texts += _continue(continue_text(start, sampling), start, num_samples, is_shown=not as_json)
    if as_json:
        asked = {"prompt": prompts[0]} if len(prompts) == 1 else {"prompts": prompts}
        typer.echo(json.dumps({"run": run, **asked, "samples": texts}))


def _named_model(given: str) -> str:
    """Return the model that was named, or the newest run; a text in its place was meant as a prompt, and is refused."""
    if not given:
        return str(newest_run())
    is_like_a_name = ("/" in given or os.sep in given) and " " not in given  # of a folder, or on the hub
    if is_like_a_name or Path(given).expanduser().exists():
        return given
    hint = f"headrace generate --prompt {shlex.quote(given)}"
    raise UsageError(f"{given}: no such run. A text to continue goes behind --prompt: {hint}")


def _piped_prompts() -> Iterable[str]:
    """Yield the lines of standard input that are not empty; one empty prompt if there are none."""
    is_empty = True
    try:
        for line in sys.stdin or ():
            if line.strip():
                is_empty = False
                yield line.rstrip("\r\n")
    except (OSError, ValueError):  # closed, or nothing that can be read
        pass
    if is_empty:
        yield ""


def _converse(continue_text: Continue, sampling: Sampling) -> None:
    """Continue what is typed, line by line, until Ctrl-D. Ctrl-C ends a text, or the conversation between texts."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() its history and editing
    signal.signal(signal.SIGINT, signal.default_int_handler)
    display.err.print("[dim]Type the beginning of a text and press Enter. Ctrl-C stops a text, Ctrl-D ends.[/]")
    number = 0
    while True:
        try:
            start = input("> ")
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")
            return
        try:
            # Another seed each time, or the same words would always be continued in the same way.
            how = replace(sampling, seed=(sampling.seed + number) % 2**63)
            _continue(continue_text(start, how), start, sampling.num_samples, is_shown=True)
        except KeyboardInterrupt:
            sys.stdout.write("\n")
        number += 1


def _continue(pieces_of_samples: Iterator[list[str]], prompt: str, num_samples: int, is_shown: bool) -> list[str]:
    """Return samples that continue a prompt; a single one is printed while it is generated."""
    texts = [prompt] * num_samples
    streams = is_shown and num_samples == 1
    if streams:
        sys.stdout.write(prompt)
    for pieces in pieces_of_samples:
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        if streams:
            sys.stdout.write(pieces[0])
            sys.stdout.flush()
    if is_shown:
        sys.stdout.write("\n" if streams else "\n---\n".join(texts) + "\n")
    return texts
