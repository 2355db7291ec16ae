"""The server behind `headrace watch`: it gives one page, to browsers on this machine, and nothing else.

Other machines cannot reach it, since it listens on the loopback address alone. Web pages that a browser on this machine
has open cannot read it either: a request must name this server as its host, which one that comes by way of another
name (DNS rebinding) does not.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.machine.ports import MAY_REUSE_ADDRESS, open_on_a_port
from headrace.report import report
from headrace.report.html import as_html
from headrace.run.directory import LOCK, RunFolder

ADDRESS = "127.0.0.1"
FIRST_PORT = 8642
MOST_PORTS = 100
"""How many ports are tried, from the first on, where none was asked for."""
MOST_OF_A_CORE = 0.05
"""Share of a core that writing pages may take of the run that is watched."""

Clock = Callable[[], float]


class LivePage:
    """The page on some runs, written again when their files have changed, but not so often that it slows them."""

    def __init__(self, folders: Sequence[Path], clock: Clock = time.monotonic) -> None:
        self._folders, self._clock = list(folders), clock
        self._lock = threading.Lock()
        self._seen: list[object] = []
        self._page, self._due_s = b"", -math.inf

    def read(self) -> bytes:
        """Return the page as it is now, or as it was a moment ago."""
        with self._lock:
            now = self._clock()
            if now >= self._due_s and self._has_changed():
                self._page = self._write()
                after = self._clock()
                self._due_s = after + (after - now) / MOST_OF_A_CORE
            return self._page

    def _has_changed(self) -> bool:
        before, self._seen = self._seen, [_state(folder) for folder in self._folders]
        return before != self._seen

    def _write(self) -> bytes:
        try:
            page = report(self._folders, is_live=True)
        except HeadraceError as problem:  # a run that has just begun has no step yet
            page = as_html("headrace: waiting for the run", [str(problem)], [], is_live=True)
        return page.encode("utf-8", "replace")


def _state(folder: Path) -> object:
    """Return what changes when a run goes on: its files, and whether a process has it."""
    try:
        files = sorted(
            (file.name, file.stat().st_mtime_ns, file.stat().st_size)
            for file in folder.iterdir()
            if file.name != LOCK  # looking whether it is held changes its time
        )
        return folder.resolve(), files, RunFolder(str(folder)).is_in_use
    except (OSError, HeadraceError):  # a file was replaced at this very moment, or the run was moved away
        return None


class PageServer(ThreadingHTTPServer):
    """A server of one page on the loopback address."""

    daemon_threads = True
    allow_reuse_address = MAY_REUSE_ADDRESS

    def __init__(self, page: LivePage, port: int) -> None:
        self.page = page
        super().__init__((ADDRESS, port), _Handler)
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"


def open_server(page: LivePage, port: int | None = None) -> PageServer:
    """Open a server on a port; without one, on the first that is free."""
    return open_on_a_port(lambda number: PageServer(page, number), port, range(FIRST_PORT, FIRST_PORT + MOST_PORTS))


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the page; everything else is refused."""

    server: PageServer
    server_version, sys_version = "headrace", ""
    timeout = 10

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal shows the address and no more."""

    def _answer(self, has_body: bool) -> None:
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "Open the address that headrace watch printed")
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND, "There is only one page here")
        else:
            self._send(self.server.page.read(), has_body)

    def _send(self, page: bytes, has_body: bool) -> None:
        version = f'"{hashlib.sha256(page).hexdigest()[:32]}"'
        is_known = self.headers.get("If-None-Match") == version
        self.send_response(HTTPStatus.NOT_MODIFIED if is_known else HTTPStatus.OK)
        self.send_header("ETag", version)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")  # the page has the rest of the policy
        self.send_header("X-Content-Type-Options", "nosniff")
        if not is_known:
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if has_body and not is_known:
            self.wfile.write(page)
