"""The signals that ask a process to end: Ctrl-C, a supervisor's SIGTERM, and SIGHUP when a terminal is closed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP


def on_stop_signals(act: Callable[[], None]) -> None:
    """Call `act` when this process is asked to end. A SIGHUP that is ignored (`nohup`) stays ignored."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        act()

    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and not (name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN):
            signal.signal(number, handle)


def end_on_second_interrupt() -> None:
    """Make a second Ctrl-C end this process at once, while it saves and ends; other signals change nothing."""
    on_stop_signals(lambda: None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
