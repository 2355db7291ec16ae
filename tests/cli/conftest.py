"""Fixtures: a virtual terminal of any size."""

from __future__ import annotations

import pytest

from headrace.cli import display
from tests.cli.terminal import Attach, Terminal


@pytest.fixture
def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Attach:
    """Return a function that makes a terminal of a size, to which both streams of the display go."""

    def make(columns: int, rows: int) -> Terminal:
        terminal = Terminal(columns, rows)
        for console in (display.err, display.out):
            terminal.attach(console, monkeypatch)
        return terminal

    return make
