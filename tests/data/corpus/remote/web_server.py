"""A web server on localhost that cuts, delays, truncates, changes and lies, as a test tells it to."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext


@dataclass
class Answer:
    """What the server is about to send; a trouble changes it."""

    status: int
    headers: dict[str, str]
    body: bytes
    sent_bytes: int | None = None
    """Bytes of the body after which the connection is cut; None: all are sent."""
    pause_s: float = 0.0
    """A pause before the body, or where it is cut."""


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]

    @property
    def is_for_data(self) -> bool:
        return self.method == "GET"


Trouble = Callable[[Request, Answer], None]


class WebServer(ThreadingHTTPServer):
    """Files in memory, what was asked for, and a trouble that befalls each answer."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, context: SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scheme = "https" if context else "http"
        if context:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.files: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.trouble: Trouble = lambda request, answer: None
        self.has_etags = True
        self.has_ranges = True
        self.released = threading.Event()

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    @property
    def data_requests(self) -> int:
        return sum(request.is_for_data for request in self.requests)

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: WebServer
    protocol_version = "HTTP/1.1"
    timeout = 20.0
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        self.server.requests.append(request)
        answer = self._answer(request)
        self.server.trouble(request, answer)
        self._send(answer)

    def _answer(self, request: Request) -> Answer:
        body = self.server.files.get(request.path.partition("?")[0])
        if body is None:
            return Answer(404, {}, b"<Error>secret of the server</Error>")
        headers = {"ETag": f'"{sha256(body).hexdigest()[:16]}"'} if self.server.has_etags else {}
        wanted = request.headers.get("if-match")
        if wanted is not None and wanted != headers.get("ETag"):
            return Answer(412, headers, b"")
        ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if not ranged or not self.server.has_ranges:
            return Answer(200, headers, body)
        begin, end = int(ranged[1]), min(int(ranged[2]) + 1, len(body))
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(body)}"
        return Answer(206, headers, body[begin:end])

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        with suppress(OSError):
            cut = len(answer.body) if answer.sent_bytes is None else answer.sent_bytes
            self.wfile.write(answer.body[:cut])
            self.wfile.flush()
            self.server.released.wait(answer.pause_s)
            if answer.sent_bytes is not None:
                self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def web_server(context: SSLContext | None = None) -> Iterator[WebServer]:
    """Serve until the block ends."""
    with WebServer(context) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


@dataclass
class Sometimes:
    """A trouble that befalls only some of the answers to GET: the first `times`, or with 0 every one."""

    trouble: Trouble
    times: int = 0
    count: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def __call__(self, request: Request, answer: Answer) -> None:
        if request.is_for_data:
            self.count += 1
            if not self.times or self.count <= self.times:
                self.trouble(request, answer)
