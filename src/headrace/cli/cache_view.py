"""What a token cache holds, and where the rows of a batch come from, printed for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from headrace.cli.display import notices, out, show_error, show_notices
from headrace.units import human_bytes, plural

if TYPE_CHECKING:  # it imports numpy, which `--help` does not wait for
    from headrace.data.cache.cache import Cache


def show_description(facts: dict[str, Any]) -> None:
    """Print the description of a cache."""
    tokenizer, chunking = facts["tokenizer"], facts["chunking"]
    out.print(f"[bold]{escape(facts['cache'])}[/]")
    out.print(
        f"  {plural(facts['documents'], 'document')}, {facts['tokens']:,} tokens from {human_bytes(facts['bytes'])}"
        f" of text ({facts['bytes_per_token']:.2f} bytes per token)"
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
        f" {plural(chunking['sequences_before'], 'document')} → {plural(chunking['sequences_after'], 'sequence')},"
        f" {chunking['documents_split']:,} split,"
        f" lengths {chunking['shortest']:,} / {chunking['mean']:,.0f} / {chunking['longest']:,} (min / mean / max),"
        f" padding {chunking['padding']:,}, fill {chunking['fill_percent']:.2f}%"
    )


def _show_sources(sources: list[dict[str, Any]]) -> None:
    from headrace.data.corpus.weights import describe_weight

    table = Table(box=None, padding=(0, 2))
    for heading in ("source", "weight", "files", "bytes", "documents", "tokens"):
        table.add_column(heading, justify="left" if heading == "source" else "right", overflow="fold")
    for source in sources:
        weight = describe_weight(source["weight"])
        counts = (f"{source['files']:,}", human_bytes(source["bytes"]))
        table.add_row(escape(source["name"]), weight, *counts, f"{source['documents']:,}", f"{source['tokens']:,}")
    out.print(table)


def show_verification(cache: Cache, problems: list[str]) -> None:
    for problem in problems:
        show_error(problem)
    if not problems:
        shards = plural(len(cache.unique_shards()), "shard")
        out.print(f"{escape(str(cache.path))}: {shards}, every byte as it was written.")


def show_rows(step: int, rows: list[dict[str, Any]]) -> None:
    """Print where the rows of a batch come from, with the beginning of each text."""
    out.print(f"[bold]step {step}[/]")
    for row in rows:
        for place, span in enumerate(row["spans"]):
            label = f"row {row['row']}" if place == 0 else ""
            text = span["text"] if len(span["text"]) <= 100 else span["text"][:97] + "…"
            out.print(f"  {label:<8} {escape(span['document'])} tokens {span['start']:,}-{span['stop']:,}")
            out.print(f"           [dim]{escape(repr(text))}[/]")
