"""A virtual terminal that the display of the command line writes to, and that tests read like a person would."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator

import pyte
import pytest
from rich.console import Console
from rich.text import Text


class Terminal:
    """Rows and columns of characters, and what has scrolled out at the top."""

    def __init__(self, columns: int, rows: int) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=1000, ratio=0.5)
        self._stream = pyte.Stream(self._screen)
        self._written = io.StringIO()
        self._num_read = 0
        self._attached: list[tuple[Console, pytest.MonkeyPatch]] = []

    def attach(self, console: Console, patch: pytest.MonkeyPatch) -> None:
        """Let a console write to this terminal."""
        self._attached.append((console, patch))
        patch.setattr(console, "_file", self._written)
        patch.setattr(console, "_force_terminal", True)
        patch.setattr(console, "_width", self._screen.columns)
        patch.setattr(console, "_height", self._screen.lines)
        patch.setattr(console, "_environ", {"TERM": "xterm"})
        patch.setattr(console, "is_interactive", True)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size; as many terminals do, rows that are too long are broken into several."""
        shown = "\r\n".join(self.rows()).rstrip()
        self._screen = pyte.HistoryScreen(columns, rows, history=1000, ratio=0.5)
        self._stream = pyte.Stream(self._screen)
        self._stream.feed(shown)
        for console, patch in self._attached:
            patch.setattr(console, "_width", columns)
            patch.setattr(console, "_height", rows)

    def type(self, keys: str) -> None:
        """Show keys where the cursor is, as a terminal echoes what is typed."""
        self._read()
        self._stream.feed(keys)

    def rows(self) -> list[str]:
        """Return the rows that are in sight."""
        self._read()
        return [row.rstrip() for row in self._screen.display]

    def all_rows(self) -> list[str]:
        """Return the rows that are in sight, and all that have scrolled out before them."""
        shown = self.rows()
        columns = range(self._screen.columns)
        gone = ["".join(row[column].data for column in columns).rstrip() for row in self._screen.history.top]
        return [*gone, *shown]

    def longest_line(self) -> int:
        """Return the length of the longest line that was written, before the terminal divided it."""
        return max(len(Text.from_ansi(line).plain.rstrip()) for line in self._written.getvalue().split("\n"))

    @property
    def has_cursor(self) -> bool:
        self._read()
        return not self._screen.cursor.hidden

    def _read(self) -> None:
        text = self._written.getvalue()
        self._stream.feed(text[self._num_read :].replace("\n", "\r\n"))  # as the driver of a terminal does
        self._num_read = len(text)


Attach = Callable[[int, int], Terminal]
"""A function that makes a terminal of some columns and rows."""


def output_of(master: int) -> Iterator[bytes]:
    """Yield what a program writes to a pseudo-terminal until it ends, and close the terminal."""
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:  # how Linux says that nobody has the other end open
            data = b""
        if not data:
            os.close(master)
            return
        yield data
