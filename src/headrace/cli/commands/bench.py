"""Commands `headrace bench loaders | train | tokenize`: headrace and its peers side by side, as tables and bars."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from headrace.bench.loaders import LoaderOptions
from headrace.bench.peer import Result
from headrace.cli import display
from headrace.cli.arguments import AsJson
from headrace.errors import UsageError
from headrace.jobs.bench import Contest, bench_record, compare_loaders, compare_tokenizers, compare_trainers

app = typer.Typer(
    help="Compare headrace with its peers. All read the same bytes in one run, and speeds are shown as ratios.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Corpus = Annotated[
    list[str] | None,
    typer.Argument(metavar="CORPUS", help="Files, folders or globs of text. Default: the Python standard library."),
]
Only = Annotated[list[str] | None, typer.Option(help="Run only peers whose name contains this; may be repeated.")]
Skip = Annotated[list[str] | None, typer.Option(help="Leave out peers whose name contains this; may be repeated.")]
Megabytes = Annotated[
    float, typer.Option(min=0.1, help="Megabytes of text to make from the corpus and use for every peer.")
]
WIDTH, GAP = 160, 2  # characters of a table that goes into a file, and between its columns
Column = tuple[str, Callable[[dict[str, Any]], str]]


@app.command()
def loaders(
    corpus: Corpus = None,
    batch_size: Annotated[
        str, typer.Option(help="Rows per batch; several sizes, such as 256,512, run one after the other.")
    ] = "512",
    sequence_length: Annotated[int, typer.Option(min=1, help="Tokens per row.")] = 256,
    num_batches: Annotated[int, typer.Option(min=1, help="Least number of batches to time.")] = 100,
    step_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds of the simulated training step that data wait is measured with.")
    ] = 100.0,
    megabytes: Megabytes = 200.0,
    only: Only = None,
    skip: Skip = None,
    as_json: AsJson = False,
) -> None:
    """Compare loaders of batches. Shows speed, first batch, data wait, processor time, memory and reproducibility."""
    contest = Contest(corpus or [], megabytes, only or [], skip or [], _say)
    options = LoaderOptions(sequence_length=sequence_length, num_batches=num_batches, step_ms=step_ms)
    sweep: dict[str, list[Result]] = {}
    for size, results in compare_loaders(contest, _sizes(batch_size), options):
        show_results(
            f"Loaders, {size} x {sequence_length} tokens a batch", results, LOADER_COLUMNS, "tokens_per_second"
        )
        sweep[str(size)] = results
    options_given = {
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "num_batches": num_batches,
        "step_ms": step_ms,
        "megabytes": megabytes,
    }
    _finish("loaders", options_given, sweep, as_json)


@app.command()
def train(
    corpus: Corpus = None,
    preset: Annotated[
        str, typer.Option(help="The preset whose shape is trained; it must set a vocabulary size.")
    ] = "wiki",
    num_steps: Annotated[int, typer.Option(min=1, help="Steps to time in each run.")] = 2,
    num_repeats: Annotated[int, typer.Option(min=1, help="Runs of each peer; peers take turns.")] = 2,
    megabytes: Megabytes = 8.0,
    only: Only = None,
    skip: Skip = None,
    as_json: AsJson = False,
) -> None:
    """Compare trainers on equal GPT-2s. All use float32; shows speed, share of the peak, memory, and equal losses."""
    contest = Contest(corpus or [], megabytes, only or [], skip or [], _say)
    results = compare_trainers(contest, preset, num_steps, num_repeats)
    show_results(f"Training, {preset} shape as GPT-2, float32", results, TRAIN_COLUMNS, "tokens_per_second")
    options = {"preset": preset, "num_steps": num_steps, "num_repeats": num_repeats, "megabytes": megabytes}
    _finish("train", options, {preset: results}, as_json)


@app.command()
def tokenize(
    corpus: Corpus = None,
    vocabulary: Annotated[
        int, typer.Option(min=257, help="Vocabulary size of the byte-level BPE that all peers use.")
    ] = 16_000,
    megabytes: Megabytes = 20.0,
    only: Only = None,
    skip: Skip = None,
    as_json: AsJson = False,
) -> None:
    """Compare tokenizers on text in memory. All cores are used; shows speed, memory, and whether ids are the same."""
    contest = Contest(corpus or [], megabytes, only or [], skip or [], _say)
    results = compare_tokenizers(contest, vocabulary)
    show_results(f"Encoding, {vocabulary:,} tokens", results, TOKENIZE_COLUMNS, "megabytes_per_second")
    options = {"vocabulary": vocabulary, "megabytes": megabytes}
    _finish("tokenize", options, {str(vocabulary): results}, as_json)


def _number(key: str, form: str, scale: float = 1.0) -> Callable[[dict[str, Any]], str]:
    return lambda values: format(values[key] / scale, form) if values.get(key) is not None else ""


def _yes(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda values: {True: "yes", False: "no", None: "-"}[values.get(key)]


RATIO: Column = ("headrace is", _number("headrace_is", ",.2f"))
MEMORY: Column = ("memory MB", _number("peak_memory_bytes", ",.0f", 1e6))
LOADER_COLUMNS: list[Column] = [
    ("M tokens/s", _number("tokens_per_second", ",.1f", 1e6)),
    RATIO,
    ("first batch s", _number("first_batch_s", ".2f")),
    ("data wait %", _number("data_wait_percent", ".1f")),
    ("CPU s / M tokens", _number("cpu_s_per_million_tokens", ".4f")),
    MEMORY,
    ("own format s", _number("prepare_s", ".1f")),
    ("same order: restart", _yes("same_order_after_restart")),
    ("other workers", _yes("same_order_with_other_workers")),
]
TRAIN_COLUMNS: list[Column] = [
    ("tokens/s", _number("tokens_per_second", ",.0f")),
    ("from", _number("slowest", ",.0f")),
    ("to", _number("fastest", ",.0f")),
    RATIO,
    ("% of peak", _number("percent_of_peak", ".0f")),
    MEMORY,
    ("parameters", _number("parameters", ",.0f")),
    ("same losses", _yes("same_losses")),
]
TOKENIZE_COLUMNS: list[Column] = [
    ("MB/s", _number("megabytes_per_second", ",.1f")),
    RATIO,
    MEMORY,
    ("same ids", _yes("same_ids")),
]


def show_results(title: str, results: list[Result], columns: list[Column], measure: str) -> None:
    """Print the table, the peers that are missing or failed, and bars on a logarithmic scale."""
    done = [result for result in results if result.status == "ok"]
    display.out.print(f"[bold]{escape(title)}[/]")
    before = display.out.width
    display.out.width = before if display.out.is_terminal else WIDTH
    for table in _tables(done, columns, display.out.width) if done else ():
        display.out.print()
        display.out.print(table)
    display.out.width = before
    display.out.print()
    for result in results:
        if result.status != "ok":
            word = "not installed" if result.status == "missing" else "failed"
            display.out.print(f"[bold]{result.peer}[/]: {word}: {escape(result.message)}")
    if len(done) > 1:
        least = min(result.values[measure] for result in done) / 2
        for result in done:
            halves = round(8 * math.log2(result.values[measure] / least))
            display.out.print(f"{result.peer:>20} {'█' * (halves // 2)}{'▌' * (halves % 2)}", highlight=False)
        display.out.print(f"{'':>20} [dim]a bar that is four cells longer is twice as fast[/]")


def _tables(done: list[Result], columns: list[Column], width: int) -> list[Table]:
    """Return the results as one table, or as several below each other where its columns do not fit the width."""
    peers = [result.peer for result in done]
    written = [("version", [result.version for result in done])]
    written += [(name, [text(result.values) for result in done]) for name, text in columns]
    parts: list[list[tuple[str, list[str], int]]] = []
    free = 0
    for name, cells in written:
        needed = max(map(len, [*cells, *name.split()]))  # a heading is broken at words
        if needed + GAP > free:
            parts.append([])
            free = width - max(map(len, [*peers, "peer"])) - GAP
        parts[-1].append((name, cells, needed))
        free -= needed + GAP
    return [_table(peers, part) for part in parts]


def _table(peers: list[str], columns: list[tuple[str, list[str], int]]) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    table.add_column("peer", no_wrap=True)
    for name, _, width in columns:
        table.add_column(name, justify="right", width=width)
    for row in zip(peers, *(cells for _, cells, _ in columns), strict=True):
        table.add_row(*row)
    return table


def _say(peer: str, what: str) -> None:
    """Print one line per piece of work on stderr, with the time, so that whoever waits sees what is running."""
    display.err.print(f"{datetime.now():%H:%M:%S} {peer}: {escape(what)}", highlight=False)


def _sizes(text: str) -> list[int]:
    sizes = [int(part) for part in text.split(",") if part.strip().isdigit() and int(part) > 0]
    if not sizes or len(sizes) != len(text.split(",")):
        raise UsageError(f"--batch-size {text!r}: write whole numbers with commas between them, such as 256,512")
    return sizes


def _finish(benchmark: str, options: dict[str, Any], results: dict[str, list[Result]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(bench_record(benchmark, options, results)))
