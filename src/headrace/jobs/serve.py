"""Serve: a trained model for OpenAI's clients and for a browser, until this process is asked to end."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from headrace.machine.signals import on_stop_signals
from headrace.run.saved_model import load_trained
from headrace.serve.engine import Engine
from headrace.serve.server import ModelServer, is_loopback, open_server

TOKEN_VARIABLE = "HEADRACE_TOKEN"
"""The environment variable that sets the token of a server; without it, a new one is made at each start."""


def serve(model: str | Path, host: str, port: int | None, show: Callable[[ModelServer], None]) -> None:
    """Serve a model (a run, a checkpoint, a folder or a hub name) until this process is asked to end.

    `show` is told once it can be used.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not is_loopback(host):
        token = token or secrets.token_urlsafe(24)
    trained = load_trained(model)
    engine = Engine((trained.network, trained.tokenizer), trained.name)
    with closing(engine), open_server(engine, host, port, token) as server:
        # A server stops between two looks for requests, and cannot wait for that in the handler of a signal.
        on_stop_signals(lambda: threading.Thread(target=server.shutdown).start())
        show(server)
        server.serve_forever(poll_interval=0.1)
