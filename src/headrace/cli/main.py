"""The command table. Each command parses, calls a job, and shows the result; `--json` prints it as the last line."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast, get_args

import typer

from headrace import __version__
from headrace.cli import bench, display, machine, plan, report, scale, training, tune
from headrace.cli.streams import lost_output, steady_streams
from headrace.data.cache.manifest import Cache
from headrace.data.cache.open import default_cache_dir
from headrace.data.config import SOURCE_OPTIONS, DataConfig
from headrace.data.corpus.sources import Source, as_sources, standard_library
from headrace.data.explain.description import describe
from headrace.data.loader import DEFAULT_TOKENIZER
from headrace.data.tokens.special_tokens import SpecialTokensInText
from headrace.data.tokens.tokenizers import SPEC_HELP
from headrace.distributed.group import is_joined
from headrace.distributed.launch import end_with_starter
from headrace.errors import EXIT_STOPPED, HeadraceError, UsageError
from headrace.jobs.inspect import explain_step
from headrace.jobs.prepare import prepare as prepare_corpus
from headrace.machine.signals import end_on_second_interrupt, on_stop_signals
from headrace.run.config import Layers
from headrace.run.config_files import is_override, parse_override
from headrace.units import parse_bytes

PREPARE_KEYS = ("tokenizer", "cache_dir", "memory_budget", *SOURCE_OPTIONS)

app = typer.Typer(
    name="headrace",
    help="Pretrain small language models on the machine you have.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 stopped by a signal after saving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]


class Stopped(BaseException):
    """A request to end this process: what is sealed stays, and the next start goes on from there."""


def _version(value: bool) -> None:
    if value:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def prepare(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CORPUS...] [KEY=VALUE...]",
            help="Files, folders or globs. Default: the Python standard library on this disk.",
        ),
    ] = None,
    tokenizer: Annotated[str, typer.Option(help=f"One of: {SPEC_HELP}.")] = DEFAULT_TOKENIZER,
    special_tokens_in_text: Annotated[
        str, typer.Option(help="What <|endoftext|> spelled out in a document becomes: ordinary text, or special.")
    ] = "ordinary",
    out: Annotated[Path | None, typer.Option(help="The cache folder. Default: one in the user's cache.")] = None,
    document: Annotated[
        str, typer.Option(help="What one document is in a text file: file, line, paragraph or delimiter.")
    ] = "file",
    delimiter: Annotated[str, typer.Option(help="With --document delimiter: the text between documents.")] = "",
    text_field: Annotated[str, typer.Option(help="The .jsonl key or .parquet column that holds the text.")] = "text",
    invalid_utf8: Annotated[
        str, typer.Option(help="Bytes that are not UTF-8: replace (and count) or refuse.")
    ] = "replace",
    malformed_lines: Annotated[str, typer.Option(help="Bad .jsonl lines: refuse, or skip (and count).")] = "refuse",
    max_expansion: Annotated[int, typer.Option(help="Refuse a compressed file that grows beyond this factor.")] = 100,
    workers: Annotated[int | None, typer.Option(min=1, help="Tokenising threads. Default: one per core.")] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="Memory for tokenising, such as 256MiB. Default: 1GiB.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenise a corpus into a cache. Run it again after a change, a kill or an error: only what is new is done.

    What `headrace train` takes as data.KEY=VALUE about text, tokenizer and cache is taken here too, before the options.
    """
    paths, data = _data_overrides(paths or [])
    tokenizer, memory_budget = data.tokenizer or tokenizer, data.memory_budget or memory_budget
    out = Path(data.cache_dir) if data.cache_dir else out
    options: dict[str, object] = {
        "document": document,
        "delimiter": delimiter,
        "text_field": text_field,
        "invalid_utf8": invalid_utf8,
        "malformed_lines": malformed_lines,
        "max_expansion": max_expansion,
        **data.source_options(),
    }
    sources: list[Source] = as_sources(
        {"path": tuple(paths) if len(paths) > 1 else paths[0], **options} if paths else standard_library()
    )
    _choices("--special-tokens-in-text", special_tokens_in_text, *get_args(SpecialTokensInText))
    special = cast(SpecialTokensInText, special_tokens_in_text)
    folder = out or default_cache_dir(sources, tokenizer, special)
    budget = parse_bytes("--memory-budget", memory_budget) if memory_budget else None
    with display.build_progress() as show:
        summary = prepare_corpus(
            sources,
            tokenizer,
            folder,
            special_tokens_in_text=special,
            num_workers=workers,
            memory_budget=budget,
            on_progress=show.update,
        )
    summary["build"] = show.summary()
    display.show_description(summary)
    _finish(summary, as_json)


@app.command()
def inspect(
    cache_path: Annotated[Path, typer.Argument(metavar="CACHE", help="A cache folder.")],
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte against its checksum.")] = False,
    step: Annotated[int | None, typer.Option(min=0, help="Show where each row of this step comes from.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="With --step: sequences per batch.")] = 8,
    sequence_length: Annotated[int, typer.Option(min=1, help="Tokens per sequence.")] = 256,
    seed: Annotated[int, typer.Option(help="With --step: the seed of the run.")] = 0,
    shuffle: Annotated[bool, typer.Option(help="With --step: whether the run shuffles.")] = True,
    packing: Annotated[str, typer.Option(help="stream or document.")] = "stream",
    split: Annotated[str, typer.Option(help="With --step: all, train or validation.")] = "all",
    validation_fraction: Annotated[float, typer.Option(help="With --step: the fraction of the run.")] = 0.0,
    weights: Annotated[str, typer.Option(help="With --step: mixture weights, such as 0.7,0.3.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show what a cache holds, check it (--verify), or explain a batch (--step N)."""
    cache = Cache.open(cache_path)
    _choices("--packing", packing, "stream", "document")
    _choices("--split", split, "all", "train", "validation")
    result: dict[str, Any] = {"cache": str(cache_path)}
    if verify:
        with display.spinner(f"Checking {len(cache.unique_shards())} shards"):
            problems = cache.verify()
        result["verified"] = not problems
        result["problems"] = problems
        display.show_verification(cache, problems)
    if step is not None:
        options: dict[str, Any] = {"batch_size": batch_size, "sequence_length": sequence_length, "seed": seed}
        options |= {"shuffle": shuffle, "packing": packing, "split": split, "validation_fraction": validation_fraction}
        options["weights"] = _parse_weights(weights)
        result["step"] = step
        result["rows"] = explain_step(cache, step, **options)
        display.show_rows(step, result["rows"])
    if not verify and step is None:
        result = describe(cache, sequence_length, packing)  # type: ignore[arg-type]
        display.show_description(result)
    _finish(result, as_json)
    if result.get("problems"):
        raise typer.Exit(1)


app.command()(training.train)
app.command()(training.generate)
app.command()(training.config)
app.command()(machine.machine)
app.command()(plan.plan)
app.command()(tune.tune)
app.command()(scale.scale)
app.command()(report.report)
app.add_typer(bench.app, name="bench")


def _data_overrides(arguments: list[str]) -> tuple[list[str], DataConfig]:
    """Split the arguments of `prepare` into paths and what data.KEY=VALUE sets."""
    given = Layers()
    for text in filter(is_override, arguments):
        key, value = parse_override(text)
        given.add({key: value}, text)
    for key in given.values:
        if key.removeprefix("data.") not in PREPARE_KEYS:
            raise UsageError(f"{key}: not for prepare, which takes data.{', data.'.join(PREPARE_KEYS)}")
    return [text for text in arguments if not is_override(text)], given.build().data


def _parse_weights(text: str) -> list[float] | None:
    try:
        return [float(part) for part in text.split(",")] if text else None
    except ValueError:
        raise UsageError(f"--weights {text!r}: write numbers with commas between them, such as 0.7,0.3") from None


def _choices(option: str, value: str, *allowed: str) -> None:
    if value not in allowed:
        raise UsageError(f"{option} {value!r}: use one of {', '.join(allowed)}")


def _finish(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result))


def _stop() -> NoReturn:
    end_on_second_interrupt()
    raise Stopped


def main() -> NoReturn:
    """Run the command line: user errors become one line and an exit code; a traceback means a bug of ours."""
    steady_streams()
    on_stop_signals(_stop)
    end_with_starter()
    code = _run()
    lost = lost_output()
    if lost is not None:
        display.show_error(f"standard output: cannot be written ({lost.strerror}). Files are not affected.")
        code = code or 1
    if code == EXIT_STOPPED and threading.active_count() > 1:
        sys.stderr.flush()
        os._exit(code)  # what these threads are in the middle of need not be waited for
    sys.exit(code)


def _run() -> int:
    """Run the command that the arguments name; return the exit code."""
    try:
        app(prog_name="headrace")
    except SystemExit as leaving:  # how typer ends, also when all went well
        return leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    except HeadraceError as problem:
        display.show_error(f"rank {os.environ['RANK']}: {problem}" if is_joined() else str(problem))
        return problem.exit_code
    except Stopped:
        if os.environ.get("RANK", "0") == "0":
            display.show_error("stopped. What is sealed is kept: the same command goes on from there.")
        return EXIT_STOPPED
    return 0
