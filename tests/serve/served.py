"""A tiny model with random weights, and a server of it in a thread."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch

from headrace.data.tokens.tokenizers import load_tokenizer
from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.serve.completing import Model
from headrace.serve.engine import Engine
from headrace.serve.server import LOOPBACK, ModelServer

CONTEXT = 32


def tiny_model() -> Model:
    """Return a network of two small layers that reads bytes, with weights large enough that its text has variety.

    It writes letters only, and never ends a text by itself, so that tests know how long texts become.
    """
    tokenizer = load_tokenizer("byte", lambda: iter(()))
    config = ModelConfig(
        d_model=32, num_layers=2, num_heads=2, d_ff=64, vocab_size=tokenizer.vocab_size, context=CONTEXT
    )
    network = build(config, seed=1)
    for parameter in network.parameters():
        if parameter.dim() == 2:
            parameter.data *= 8
    letters = [index for index in range(tokenizer.vocab_size) if tokenizer.decode([index]).isalpha()]
    penalty = torch.full((tokenizer.vocab_size,), -100.0)
    penalty[letters] = 0
    plain = network.logits
    network.logits = lambda hidden: plain(hidden) + penalty  # type: ignore[method-assign]
    return network.eval(), tokenizer


@contextmanager
def serving(token: str = "") -> Iterator[ModelServer]:
    """Serve the tiny model on a free port."""
    with closing(Engine(tiny_model(), "tiny")) as engine, ModelServer(engine, LOOPBACK, 0, token) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: ModelServer, path: str, body: object = None, method: str = "", **headers: str
) -> tuple[int, dict[str, Any]]:
    """Send one request; return the status, and the JSON of the answer."""
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=30)
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    kind = {} if raw is None else {"Content-Type": "application/json"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method or ("GET" if raw is None else "POST"), path, body=raw, headers={**kind, **named})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    is_json = answer.headers.get_content_type() == "application/json" and text
    return answer.status, json.loads(text) if is_json else {"text": text.decode()}
