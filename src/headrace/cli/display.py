"""Output for people: rich in a terminal, plain lines elsewhere. Everything but results goes to stderr."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from headrace.activity import Activity, ignore
from headrace.units import counted, human_bytes

NOTICED = {
    "invalid_utf8": "invalid UTF-8 sequence(s), replaced by U+FFFD",
    "latin1_texts": "text(s) with bytes of Latin-1, not UTF-8; convert them: iconv -f WINDOWS-1252 -t UTF-8",
    "nul_bytes": "NUL byte(s), kept: is this really text?",
    "byte_order_marks": "byte order mark(s), removed",
    "empty_documents": "empty document(s), left out",
    "malformed_lines": "malformed line(s), skipped",
    "documents_not_judged": "document(s) too large to judge by language or function, kept",
}
DROPPED = {
    "too_short": "document(s) shorter than data.min_document_bytes, dropped",
    "too_long": "document(s) longer than data.max_document_bytes, dropped",
    "language": "document(s) in other languages than data.languages, dropped",
    "function": "document(s) dropped by the function keep",
    "duplicate": "document(s) that repeat an earlier one, dropped",
    "near_duplicate": "document(s) that are nearly the same as an earlier one, dropped",
}
_SUFFIX = " with the suffix "
MOST_SUFFIXES, SHOWN_SUFFIXES = 3, 5
"""Suffixes of files left out that have a line each; beyond that they share a line, and how many of them it names."""

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def wrapped(message: Text | str, console: Console = err) -> list[Text]:
    """Return the rows that a message takes: in a terminal it is wrapped at words, and further rows are indented."""
    text = message if isinstance(message, Text) else Text(message)
    if not console.is_terminal:
        return [text]
    indent = 2 + len(text.plain) - len(text.plain.lstrip())
    lines = text.wrap(console, max(1, console.width - indent))
    return [Text(" " * indent if number else "") + line for number, line in enumerate(lines)]


def say(message: Text | str, console: Console = err) -> None:
    """Print a message, in a terminal wrapped at words."""
    for row in wrapped(message, console):
        console.print(row)


def say_markup(markup: str) -> None:
    """Print a line of a result with rich's markup in it, in a terminal wrapped at words."""
    say(Text.from_markup(markup), out)


def show_error(message: str) -> None:
    err.print(f"[bold red]error:[/] {escape(message)}")


def show_warning(message: str) -> None:
    say(as_warning(message))


def as_warning(message: str) -> Text:
    """Return a message as it looks where it is a warning."""
    return Text.assemble(("warning:", "yellow"), " ", message)


def printable(text: str) -> str:
    """Return a text in a form that cannot move the cursor or change colours, whatever a network has written.

    >>> printable("a\\tb\\r\\n\\x1b[2Jc")
    'a    b\\n\ufffd[2Jc'
    """
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return "".join("\ufffd" if _is_control(character) else character for character in text)


def _is_control(character: str) -> bool:
    return character != "\n" and unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


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


def show_notices(lines: Iterable[str], console: Console) -> None:
    """Print what the user should know although it is not an error, one line each."""
    for line in lines:
        say(as_notice(line), console)


def as_notice(message: str) -> Text:
    """Return a message as it looks where the user should know it although it is not an error."""
    return Text.assemble("  ", ("noticed:", "yellow"), " ", message)


def notices(facts: dict[str, Any]) -> list[str]:
    """Return a line for each kind of oddity in a corpus, and for each kind of file that was left out."""
    odd = suffixes_together({NOTICED.get(kind, kind): count for kind, count in facts["noticed"].items() if count})
    left_out = suffixes_together({f"{reason}, left out": count for reason, count in facts["skipped"].items()})
    said = [[counted(count, things) for things, count in counts.items()] for counts in (odd, left_out)]
    return [*said[0], *_selection_notices(facts), *said[1]]


def _selection_notices(facts: dict[str, Any]) -> list[str]:
    """Return a line for each reason for which documents were dropped, and one for duplicates that were not."""
    dropped, duplicates = facts.get("dropped") or {}, facts.get("duplicates")
    lines = [
        f"{counted(counts['documents'], DROPPED.get(reason, reason))} ({human_bytes(counts['bytes'])})"
        for reason, counts in dropped.items()
    ]
    if duplicates and duplicates["documents"] and "duplicate" not in dropped:
        repeated = counted(duplicates["documents"], "document(s) that repeat an earlier one exactly, kept")
        lines.append(f"{repeated} ({human_bytes(duplicates['bytes'])}); data.deduplicate=exact drops them")
    return lines


def suffixes_together(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts of things with those that differ only in their suffix as one, if there are more than a few.

    >>> suffixes_together({f"file(s) with the suffix .{a}, left out": n for n, a in enumerate("abcd", 1)})
    {'file(s) with 4 other suffixes, left out (.d 4, .c 3, .b 2, .a 1)': 10}
    """
    together: dict[str, dict[str, int]] = {}
    for things, count in counts.items():
        what, _, suffix = things.removesuffix(", left out").partition(_SUFFIX)
        together.setdefault(what if suffix else things, {})[suffix] = count
    result: dict[str, int] = {}
    for what, by_suffix in together.items():
        if len(by_suffix) <= MOST_SUFFIXES:
            result |= {f"{what}{_SUFFIX}{suffix}, left out" if suffix else what: n for suffix, n in by_suffix.items()}
            continue
        most = sorted(by_suffix.items(), key=lambda item: -item[1])[:SHOWN_SUFFIXES]
        more = ", …" if len(by_suffix) > len(most) else ""
        shown = ", ".join(f"{suffix} {count:,}" for suffix, count in most) + more
        result[f"{what} with {len(by_suffix)} other suffixes, left out ({shown})"] = sum(by_suffix.values())
    return result
