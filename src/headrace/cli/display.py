"""Output for people: rich in a terminal, plain lines elsewhere. Everything but results goes to stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from headrace.activity import Activity, ignore
from headrace.perf.breakdown import break_down, find_bottleneck
from headrace.units import human_bytes, human_count, human_percent, human_time, plural

if TYPE_CHECKING:  # these import numpy, and the first word on the screen comes before that
    from headrace.data.cache.build import Progress as BuildState
    from headrace.data.cache.cache import Cache

PLAIN_SECONDS = 2.0
NOTICED = {
    "invalid_utf8": "invalid UTF-8 sequence(s), replaced by U+FFFD",
    "latin1_texts": "text(s) that look like Latin-1, not UTF-8; convert them: iconv -f WINDOWS-1252 -t UTF-8",
    "nul_bytes": "NUL byte(s), kept: is this really text?",
    "byte_order_marks": "byte order mark(s), removed",
    "empty_documents": "empty document(s), left out",
    "malformed_lines": "malformed line(s), skipped",
}

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def show_error(message: str) -> None:
    err.print(f"[bold red]error:[/] {escape(message)}")


def show_warning(message: str) -> None:
    err.print(f"[yellow]warning:[/] {escape(message)}")


class BuildDisplay:
    """The progress of tokenising and its rate; subclasses show it."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._building_s = 0.0  # when tokenising began, after files were listed and a tokenizer was learned
        self._state: BuildState | None = None
        self._first_bytes = 0

    def update(self, state: BuildState) -> None:
        if self._state is None:
            self._building_s = time.monotonic()
            self._first_bytes = state.done_bytes
        self._state = state

    def begin(self, doing: str) -> None:
        """Show what begins now."""

    @property
    def bytes_per_second(self) -> float:
        done = self._state.done_bytes - self._first_bytes if self._state else 0
        return done / max(time.monotonic() - self._building_s, 1e-9)

    def summary(self) -> dict[str, Any]:
        state = self._state
        now_s = time.monotonic()
        return {
            "seconds": round(now_s - self._began_s, 3),
            "tokenising_seconds": round(now_s - self._building_s, 3),
            "tokenised_bytes": state.tokenised_bytes if state else 0,
            "tokenised_files": state.tokenised_files if state else 0,
        }


class _Bar(BuildDisplay):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._task = progress.add_task("starting", total=None, tokens="", rate="")

    def begin(self, doing: str) -> None:
        self._progress.update(self._task, description=doing[:1].upper() + doing[1:])

    def update(self, state: BuildState) -> None:
        super().update(state)
        self._progress.update(
            self._task,
            total=state.total_bytes,
            completed=state.done_bytes,
            tokens=f"{human_count(state.num_tokens)} tokens",
            rate=f"{self.bytes_per_second / 1e6:.0f} MB/s",
        )


class _Lines(BuildDisplay):
    def __init__(self) -> None:
        super().__init__()
        self._shown_s = time.monotonic()

    def begin(self, doing: str) -> None:
        err.print(doing, markup=False)

    def update(self, state: BuildState) -> None:
        super().update(state)
        if time.monotonic() - self._shown_s < PLAIN_SECONDS:
            return
        self._shown_s = time.monotonic()
        rate = self.bytes_per_second
        left = (state.total_bytes - state.done_bytes) / rate if rate else float("inf")
        err.print(
            f"tokenising {human_bytes(state.done_bytes)} of {human_bytes(state.total_bytes)}"
            f" ({100 * state.done_bytes / max(state.total_bytes, 1):.0f}%),"
            f" {human_count(state.num_tokens)} tokens, {rate / 1e6:.0f} MB/s, {human_time(left)} left"
        )


class _BytesColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        total = human_bytes(task.total) if task.total else "?"
        return Text(f"{human_bytes(task.completed)}/{total}")


@contextmanager
def build_progress() -> Iterator[BuildDisplay]:
    """Show the progress of tokenising: a live bar in a terminal, a line every two seconds elsewhere."""
    if not err.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), _BytesColumn(), TextColumn("{task.fields[tokens]}"),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=True) as progress:
        yield _Bar(progress)


@contextmanager
def spinner(message: str) -> Iterator[Callable[[str], None]]:
    """Show what is going on, and yield a function that adds what is being done at the moment."""
    if not err.is_terminal:
        yield lambda text: err.print(f"{message}: {text}", markup=False, highlight=False)
        return
    with err.status(message) as status:
        yield lambda text: status.update(f"{message}: {escape(text)}")


@contextmanager
def activities() -> Iterator[Activity]:
    """Show what a command is doing: in a terminal one line with the time it has taken, elsewhere a line for each thing.

    Of several processes that train together, only the first shows anything.
    """
    if os.environ.get("RANK", "0") != "0":
        yield ignore
    elif not err.is_terminal:
        yield lambda doing: err.print(doing, markup=False)
    else:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=err, transient=True) as progress:
            task = progress.add_task("starting", total=None)

            def show(doing: str) -> None:
                progress.reset(task, description=doing)

            yield show


@contextmanager
def loading(in_plain_lines: bool = True) -> Iterator[None]:
    """Say that PyTorch is being imported, which takes seconds: the first word of the commands that need it."""
    if "torch" in sys.modules or not (in_plain_lines or err.is_terminal):
        yield
        return
    with activities() as activity:
        activity("loading PyTorch")
        yield


def show_description(facts: dict[str, Any]) -> None:
    """Print the description of a cache."""
    tokenizer, chunking = facts["tokenizer"], facts["chunking"]
    out.print(f"[bold]{escape(facts['cache'])}[/]")
    out.print(
        f"  {facts['documents']:,} documents, {facts['tokens']:,} tokens from {human_bytes(facts['bytes'])} of text"
        f" ({facts['bytes_per_token']:.2f} bytes per token)"
    )
    out.print(f"  tokenizer {escape(tokenizer['spec'])}: {tokenizer['vocab_size']:,} tokens")
    out.print(f"  {plural(facts['shards'], 'sealed shard')}, {human_bytes(facts['stored_bytes'])} on disk")
    build = facts.get("build")
    if build:
        rate = build["tokenised_bytes"] / max(build["tokenising_seconds"], 1e-9) / 1e6
        done = f"tokenised {human_bytes(build['tokenised_bytes'])} at {rate:.0f} MB/s"
        done = done if build["tokenised_bytes"] else "nothing new to tokenise"
        out.print(f"  {done}; {build['seconds']:.1f} s in all")
    show_notices([*tokenizer["notices"], *notices(facts)], out)
    if len(facts["sources"]) > 1:
        _show_sources(facts["sources"])
    out.print(
        f"  sequences of {chunking['sequence_length']} ({chunking['packing']}):"
        f" {chunking['sequences_before']:,} documents → {chunking['sequences_after']:,} sequences,"
        f" {chunking['documents_split']:,} documents split,"
        f" lengths {chunking['shortest']:,} / {chunking['mean']:,.0f} / {chunking['longest']:,} (min / mean / max),"
        f" padding {chunking['padding']:,}, fill {chunking['fill_percent']:.2f}%"
    )


def show_notices(lines: Iterable[str], console: Console) -> None:
    """Print what the user should know although it is not an error, one line each."""
    for line in lines:
        console.print(f"  [yellow]noticed:[/] {escape(line)}")


def notices(facts: dict[str, Any]) -> list[str]:
    """Return a line for each kind of oddity in a corpus, and for each kind of file that was left out."""
    odd = [f"{count:,} {NOTICED.get(kind, kind)}" for kind, count in facts["noticed"].items() if count]
    return odd + [f"{count:,} {reason}, left out" for reason, count in facts["skipped"].items()]


def _show_sources(sources: list[dict[str, Any]]) -> None:
    table = Table(box=None, padding=(0, 2))
    for heading in ("source", "weight", "files", "bytes", "documents", "tokens"):
        table.add_column(heading, justify="left" if heading == "source" else "right", overflow="fold")
    for source in sources:
        weight = "" if source["weight"] is None else f"{source['weight']:g}"
        counts = (f"{source['files']:,}", human_bytes(source["bytes"]))
        table.add_row(escape(source["name"]), weight, *counts, f"{source['documents']:,}", f"{source['tokens']:,}")
    out.print(table)


def show_verification(cache: Cache, problems: list[str]) -> None:
    for problem in problems:
        show_error(problem)
    if not problems:
        out.print(f"{escape(str(cache.path))}: {len(cache.unique_shards())} shards, every byte as it was written.")


def show_rows(step: int, rows: list[dict[str, Any]]) -> None:
    """Print where the rows of a batch come from, with the beginning of each text."""
    out.print(f"[bold]step {step}[/]")
    for row in rows:
        for place, span in enumerate(row["spans"]):
            label = f"row {row['row']}" if place == 0 else ""
            text = span["text"] if len(span["text"]) <= 100 else span["text"][:97] + "…"
            out.print(f"  {label:<8} {escape(span['document'])} tokens {span['start']:,}-{span['stop']:,}")
            out.print(f"           [dim]{escape(repr(text))}[/]")


def validation_text(num_tokens: int, is_whole: bool) -> str:
    """Say what an evaluation was made on.

    >>> validation_text(10_240, is_whole=False), validation_text(55_770, is_whole=True)
    ('a sample of 10,240 tokens', 'the whole validation part')
    """
    return "the whole validation part" if is_whole else f"a sample of {num_tokens:,} tokens"


def show_run(run: dict[str, Any]) -> None:
    """Print the summary of a run: what was learned, where the time went, and what to do next."""
    out.print(f"[bold]{escape(run['run'])}[/]: {run['steps']:,} steps, {human_count(run['tokens'])} tokens")
    first, last = run["first_loss"], run["train_loss"]
    if first is not None:
        out.print(f"  training loss {first:.4f} → {last:.4f}")
    if run["validation_loss"] is not None:
        bits = run["validation_bits_per_byte"]
        num_tokens = run["validation_tokens"]
        on = f" on {validation_text(num_tokens, run['validation_is_whole'])}" if num_tokens else ""
        out.print(f"  validation loss {run['validation_loss']:.4f} ({bits:.3f} bits per byte){on}")
    for source, loss in run["validation_loss_by_source"].items():
        out.print(f"    {escape(source)}: {'no validation text' if loss is None else f'{loss:.4f}'}")
    if run["skipped_steps"]:
        out.print(f"  [yellow]{plural(run['skipped_steps'], 'update')} skipped: the loss or gradient was not finite[/]")
    shares = break_down(run["seconds"])
    parts = ", ".join(f"{share.stage} {share.percent:.1f}%" for share in shares)
    out.print(f"  time {human_time(run['train_seconds'])}: {parts}")
    bottleneck = find_bottleneck(shares, run["percent_of_peak"], run["processor_taken_percent"])
    out.print(f"  bottleneck: {bottleneck.name} ({bottleneck.evidence})")
    out.print(
        f"  {run['tokens_per_second']:,.0f} tokens/s overall,"
        f" {human_percent(run['percent_of_peak'])} of this machine's measured peak while training,"
        f" {run['cpu_cores']:.1f} cores busy, {human_bytes(run['peak_memory_bytes'])} of memory at most"
    )
    for name, key in (("before", "first_sample"), ("after", "last_sample")):
        if run[key]:
            out.print(f"  [dim]{name}:[/] {escape(repr(run[key][:300]))}")
    out.print(f"  next: headrace report {escape(run['run'])}")
    out.print(f'        headrace generate {escape(run["run"])} --prompt "..."')
