"""Watch: the report on runs, served to a browser on this machine while they go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.errors import ReportError
from headrace.machine.signals import on_stop_signals
from headrace.report.server import LivePage, open_server


def watch(runs: Sequence[Path], port: int | None, show: Callable[[str], None]) -> None:
    """Serve the page until this process is asked to end; `show` is told the address once it can be opened."""
    for run in runs:
        if not run.is_dir():
            raise ReportError(f"{run}: no such run directory. Start one with `headrace train`, or name another.")
    with open_server(LivePage(runs), port) as server:
        # A server stops between two looks for requests, and cannot wait for that in the handler of a signal.
        on_stop_signals(lambda: threading.Thread(target=server.shutdown).start())
        show(server.url)
        server.serve_forever()
