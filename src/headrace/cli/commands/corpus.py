"""Commands `headrace prepare` and `inspect`: text becomes a token cache, and a cache is looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from yaml import YAMLError

from headrace.cli import cache_view, display
from headrace.cli.arguments import LAST_RUN, AsJson, newest_run
from headrace.cli.keys import describe_key
from headrace.cli.tokenising import build_progress
from headrace.data.cache.cache import Cache
from headrace.data.config import SOURCE_OPTIONS, DataConfig
from headrace.data.corpus.remote.addresses import without_secrets
from headrace.data.corpus.sources import DocumentKind, InvalidUtf8, MalformedLines, as_sources, standard_library
from headrace.data.explain.description import describe
from headrace.data.order.packing import PackingName
from headrace.data.order.split import Part
from headrace.data.selection.options import Deduplicate
from headrace.data.tokens.special_tokens import SpecialTokensInText
from headrace.data.tokens.tokenizers import DEFAULT_TOKENIZER, SPEC_HELP
from headrace.errors import UsageError
from headrace.jobs.inspect import cache_of_run, explain_step, is_run, options_of
from headrace.jobs.prepare import prepare as prepare_corpus
from headrace.run.config import Layers
from headrace.run.config_files import is_override, parse_override, parse_yaml

SELECTION_KEYS = ("deduplicate", "near_threshold")
PREPARE_KEYS = (
    "tokenizer", "special_tokens_in_text", "cache_dir", "memory_budget", *SELECTION_KEYS, *SOURCE_OPTIONS,
)  # fmt: skip


def _key(name: str) -> Any:
    """Return the option of a key of the `data` section; its help is the key's meaning."""
    return typer.Option(help=describe_key(f"data.{name}").meaning, show_default=False)


def _of_run(what: str, default: str, **limits: Any) -> Any:
    """Return an option of --step that a run answers itself."""
    return typer.Option(help=f"With --step: {what}. Default: the run's, or {default}.", show_default=False, **limits)


def prepare(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CORPUS | KEY=VALUE",
            help="Files, folders or globs of text. Default: the Python standard library on this disk.",
        ),
    ] = None,
    tokenizer: Annotated[str, typer.Option(help=f"The tokenizer: {SPEC_HELP}.")] = DEFAULT_TOKENIZER,
    special_tokens_in_text: Annotated[SpecialTokensInText | None, _key("special_tokens_in_text")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The cache folder to write. Default: one in the user's cache.")
    ] = None,
    document: Annotated[DocumentKind | None, _key("document")] = None,
    delimiter: Annotated[str | None, _key("delimiter")] = None,
    text_field: Annotated[str | None, _key("text_field")] = None,
    invalid_utf8: Annotated[InvalidUtf8 | None, _key("invalid_utf8")] = None,
    malformed_lines: Annotated[MalformedLines | None, _key("malformed_lines")] = None,
    as_plain_text: Annotated[bool | None, _key("as_plain_text")] = None,
    max_expansion: Annotated[int | None, _key("max_expansion")] = None,
    deduplicate: Annotated[Deduplicate | None, _key("deduplicate")] = None,
    near_threshold: Annotated[float | None, _key("near_threshold")] = None,
    min_document_bytes: Annotated[str | None, _key("min_document_bytes")] = None,
    max_document_bytes: Annotated[str | None, _key("max_document_bytes")] = None,
    languages: Annotated[str | None, _key("languages")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads that tokenise. Default: one per core.")] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="Memory for tokenising, such as 256MiB. Default: 1GiB.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenise a corpus into a cache. Run it again after a change or an interruption: only new text is tokenised.

    The keys of `headrace train` about text, tokenizer and cache can be given here too, as data.KEY=VALUE; they go over
    the options. `headrace config data.KEY` explains a key.
    """
    options = {
        "tokenizer": tokenizer,
        "special_tokens_in_text": special_tokens_in_text,
        "cache_dir": str(out or ""),
        "document": document,
        "delimiter": delimiter,
        "text_field": text_field,
        "invalid_utf8": invalid_utf8,
        "malformed_lines": malformed_lines,
        "as_plain_text": as_plain_text,
        "max_expansion": max_expansion,
        "deduplicate": deduplicate,
        "near_threshold": near_threshold,
        "min_document_bytes": min_document_bytes,
        "max_document_bytes": max_document_bytes,
        "languages": languages,
        "memory_budget": memory_budget,
    }
    paths, data = _data_config(paths or [], _given(options))
    with build_progress() as show:
        summary = prepare_corpus(
            data.apply_options(as_sources(paths or standard_library())),
            data.tokenizer,
            data.cache_dir or None,
            special_tokens_in_text=data.special_tokens_in_text,
            deduplicate=data.deduplicate,
            near_threshold=data.near_threshold,
            num_workers=workers,
            memory_budget=data.memory_budget,
            on_progress=show.update,
            activity=show.begin,
        )
    summary["build"] = show.summary()
    cache_view.show_description(summary)
    _finish(summary, as_json)


def inspect(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="CACHE | RUN", help=f"The folder of a token cache, or a run for its own. Default: {LAST_RUN}."
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every byte with its checksum.")] = False,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Show which documents a batch is made of: 0 is the first, of training step 1."),
    ] = None,
    batch_size: Annotated[int | None, _of_run("the batch size", "8", min=1)] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens per sequence. Default: the run's, or 256.")
    ] = None,
    seed: Annotated[int | None, _of_run("the seed", "0")] = None,
    shuffle: Annotated[bool | None, _of_run("whether batches are shuffled", "they are")] = None,
    packing: Annotated[
        PackingName | None, typer.Option(help=f"{describe_key('data.packing').meaning} Default: the run's, or stream.")
    ] = None,
    split: Annotated[Part | None, _of_run("the part of the corpus that the batch is from", "all")] = None,
    validation_fraction: Annotated[float | None, _of_run("the share that is kept for validation", "0")] = None,
    weights: Annotated[
        str, _of_run("weights of the sources, such as 0.7,0.3 or {web: {0: 0.9, 800: 0.2}}", "the cache's")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show what a token cache holds. Or check it (--verify), or explain a batch made from it (--step N).

    With a run instead of a cache, --step N shows the batch that was read for its training step N+1.
    """
    folder = folder or newest_run()
    options: dict[str, Any] = {"batch_size": 8, "sequence_length": 256, "packing": "stream"}
    notices: list[str] = []
    if is_run(folder):
        with display.loading(in_plain_lines=False):
            cache, config = cache_of_run(folder)
            options = options_of(config)
        if config.training.pieces > 1:
            notices = ["while windows were short, these sequences were spread over this update and its neighbours"]
    else:
        cache = Cache.open(folder)
    given: dict[str, Any] = {"batch_size": batch_size, "sequence_length": sequence_length, "seed": seed}
    given |= {"shuffle": shuffle, "packing": packing, "split": split, "validation_fraction": validation_fraction}
    given["weights"] = _parse_weights(weights)
    result: dict[str, Any] = {"cache": str(cache.path)}
    if verify:
        with display.spinner(f"Checking {len(cache.unique_shards())} shards"):
            problems = cache.verify()
        result["verified"] = not problems
        result["problems"] = problems
        cache_view.show_verification(cache, problems)
    if step is not None:
        result["step"] = step
        result["rows"] = explain_step(cache, step, **options | _given(given))
        cache_view.show_rows(step, result["rows"])
        display.show_notices(notices, display.out)
    if not verify and step is None:
        options |= _given(given)
        result = describe(cache, options["sequence_length"], options["packing"])
        cache_view.show_description(result)
    _finish(result, as_json)
    if result.get("problems"):
        raise typer.Exit(1)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _data_config(arguments: list[str], options: dict[str, Any]) -> tuple[list[str], DataConfig]:
    """Split the arguments of `prepare` into paths and data.KEY=VALUE, and return the latter on top of the options."""
    given = Layers()
    for text in filter(is_override, arguments):
        key, value = parse_override(text)
        given.add({key: value}, without_secrets(text))
    for key in given.values:
        if key.removeprefix("data.") not in PREPARE_KEYS:
            raise UsageError(f"{key}: prepare does not use this key. It takes data.{', data.'.join(PREPARE_KEYS)}")
    for name, value in options.items():
        if f"data.{name}" not in given.values:
            given.add({f"data.{name}": value}, f"--{name.replace('_', '-')}")
    return [text for text in arguments if not is_override(text)], given.build_data()


def _parse_weights(text: str) -> list[Any] | dict[str, Any] | None:
    """Read weights in the order of the sources, or by their names in braces."""
    if not text:
        return None
    try:
        parsed: list[Any] | dict[str, Any] = parse_yaml(text if text.lstrip().startswith("{") else f"[{text}]")
    except (ValueError, YAMLError):
        parsed = []
    if parsed and (isinstance(parsed, dict) or not any(isinstance(weight, str) for weight in parsed)):
        return parsed
    raise UsageError(
        f"--weights {text!r}: write numbers with commas between them, such as 0.7,0.3, or names and weights in braces"
    )


def _finish(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result))
