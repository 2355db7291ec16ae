"""The HTTP server: a thread for each connection, limits on what a client may send, and a token for other machines.

On the loopback address, which only programs of this machine reach, no token is needed. Web pages that a browser here
has open cannot use the server either: a request must name it as its host, which one that comes by way of another name
(DNS rebinding) does not, and a completion is asked for as JSON, which a page may not send to another server unasked.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import select
import socket
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from headrace.machine.ports import MAY_REUSE_ADDRESS, open_on_a_port
from headrace.serve.answers import events, new_head, whole_answer
from headrace.serve.api import ApiError, CompletionRequest, model_card, parse_completion
from headrace.serve.completing import Delta
from headrace.serve.engine import AbandonedError, Engine

LOOPBACK = "127.0.0.1"
FIRST_PORT = 8900
MOST_PORTS = 100
MOST_CONNECTIONS = 64
MOST_BODY_BYTES = 4 << 20
PATIENCE_S = 30.0
"""How long a client may neither send what it owes nor read what it is sent."""
DRAIN_S = 5.0
"""How long the rest of a body that is too large is read and dropped, so that its sender gets to see the answer."""
BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json\r\n\r\n"
    + json.dumps(
        ApiError(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_CONNECTIONS} connections are open already. Try again.").body
    ).encode()
)
BUG = ApiError(
    HTTPStatus.INTERNAL_SERVER_ERROR, "headrace failed: a bug. The terminal that runs headrace serve shows where."
)
FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; frame-ancestors 'none'"
)


class ModelServer(ThreadingHTTPServer):
    """A server of one model."""

    daemon_threads = True
    allow_reuse_address = MAY_REUSE_ADDRESS
    request_queue_size = 2 * MOST_CONNECTIONS

    def __init__(self, engine: Engine, host: str, port: int, token: str = "") -> None:
        self.engine, self.token = engine, token
        self.created = int(time.time())
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), _Handler)
        self._name = f"[{host}]" if ":" in host else host
        self.hosts = {f"{name}:{self.server_port}" for name in (self._name, LOOPBACK, "localhost")}

    @property
    def url(self) -> str:
        return f"http://{self._name}:{self.server_port}/"

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name, as the base class does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless there are too many already."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.settimeout(0.05)
            request.recv(1 << 16)  # a connection closed with unread data loses the answer
            request.sendall(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a bug; a connection that breaks is none."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def open_server(engine: Engine, host: str, port: int | None, token: str) -> ModelServer:
    """Open a server on a port; without one, on the first that is free."""
    choices = range(FIRST_PORT, FIRST_PORT + MOST_PORTS)
    return open_on_a_port(lambda number: ModelServer(engine, host, number, token), port, choices)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request: each connection has only one."""

    server: ModelServer
    server_version, sys_version = "headrace", ""
    timeout = PATIENCE_S
    _has_answered = False

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal shows the address and no more."""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, act: Any) -> None:
        """Act on the request; what is wrong with it becomes an answer that says so, and so does a bug of ours."""
        try:
            self._check_host()
            act()
        except ApiError as problem:
            self._send_json(problem.body, problem.status)
        except (AbandonedError, TimeoutError, ConnectionError):
            self.close_connection = True
        except Exception:
            traceback.print_exc()
            if not self._has_answered:  # a stream that has begun can only end
                self._send_json(BUG.body, BUG.status)

    def end_headers(self) -> None:
        self._has_answered = True
        super().end_headers()

    def _check_host(self) -> None:
        if not self.server.token and self.headers.get("Host", "").lower() not in self.server.hosts:
            raise ApiError(HTTPStatus.MISDIRECTED_REQUEST, f"use the address that headrace printed: {self.server.url}")

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if self.server.token and not hmac.compare_digest(given, self.server.token.encode()):
            message = "this server needs the token that it printed when it was started, as the API key of the client"
            raise ApiError(HTTPStatus.UNAUTHORIZED, message, "invalid_api_key")

    def _get(self) -> None:
        path = self.path.partition("?")[0]
        if path in FILES:
            name, kind = FILES[path]
            self._send(resources.files(__package__).joinpath(name).read_bytes(), kind)
            return
        self._check_token()
        engine = self.server.engine
        card = model_card(engine.name, self.server.created, engine.context)
        if path == "/v1/models":
            self._send_json({"object": "list", "data": [card]})
        elif path == f"/v1/models/{engine.name}":
            self._send_json(card)
        else:
            raise _not_found(path)

    def _post(self) -> None:
        body = self._read_body()
        self._check_token()
        if self.path.partition("?")[0] != "/v1/completions":
            raise _not_found(self.path)
        if self.headers.get_content_type() != "application/json":
            raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, with Content-Type: application/json")
        request = parse_completion(body)
        engine = self.server.engine
        if request.model not in (None, engine.name):
            message = f"this server has one model, {engine.name!r}, not {request.model!r}"
            raise ApiError(HTTPStatus.NOT_FOUND, message, "model_not_found", "model")
        prompts = engine.encode(request)
        num_tokens = sum(map(len, prompts))
        with closing(engine.complete(prompts, request, self._has_left)) as steps:
            if request.stream:
                self._stream(request, num_tokens, steps)
            else:
                self._send_json(whole_answer(new_head(engine.name), request, num_tokens, steps))

    def _stream(self, request: CompletionRequest, num_tokens: int, steps: Iterator[list[Delta]]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        for event in events(new_head(self.server.engine.name), request, num_tokens, steps):
            self.wfile.write(event)

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise ApiError(HTTPStatus.LENGTH_REQUIRED, "the request must say the length of its body (Content-Length)")
        if len(length) > 15 or int(length) > MOST_BODY_BYTES:
            self._drain()
            message = f"the body has {length[:20]} bytes; at most {MOST_BODY_BYTES:,} are accepted"
            raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise AbandonedError
        return body

    def _drain(self) -> None:
        """Read and drop a body that is too large, for a while."""
        until = time.monotonic() + DRAIN_S
        self.connection.settimeout(1)
        with suppress(OSError):
            rest = int(self.headers["Content-Length"][:20])
            while rest > 0 and time.monotonic() < until:
                block = self.rfile.read1(min(rest, 1 << 16))
                if not block:
                    return
                rest -= len(block)

    def _has_left(self) -> bool:
        """Return whether the client has closed the connection."""
        try:
            can_read, _, _ = select.select([self.connection], [], [], 0)
            return bool(can_read) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _send_json(self, value: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _not_found(path: str) -> ApiError:
    if path.startswith("/v1/chat/"):
        message = "this model continues text and knows no roles: use /v1/completions (client.completions.create)"
    else:
        message = f"{path[:100]}: there are /v1/completions, /v1/models, and a page at /"
    return ApiError(HTTPStatus.NOT_FOUND, message)
