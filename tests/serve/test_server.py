"""The HTTP server: OpenAI's own client, limits, tokens, clients that leave, and many of them at once."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import headrace as hr
from headrace.serve.api import CompletionRequest
from headrace.serve.completing import complete, encode_prompts
from headrace.serve.server import LOOPBACK, MOST_BODY_BYTES, MOST_CONNECTIONS, ModelServer, is_loopback
from tests.conftest import make_text
from tests.run.tiny_run import settings
from tests.serve.served import ask, serving

Command = Callable[..., tuple[int, str, str]]
COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with serving() as server:
        yield server


def expected_text(server: ModelServer, **asked: object) -> str:
    """Compute a completion without the server."""
    request = CompletionRequest.model_validate(asked)
    model = server.engine.model
    return "".join(
        delta.text for deltas in complete(model, encode_prompts(model, request), request) for delta in deltas
    )


def test_openai_client(server: ModelServer) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install -e '.[dev]'")
    with openai.OpenAI(base_url=f"{server.url}v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").owned_by == "headrace"
        asked = {"prompt": "the mill", "max_tokens": 40, "seed": 7}
        whole = client.completions.create(model="tiny", **asked)
        assert whole.choices[0].text == expected_text(server, **asked)
        assert whole.choices[0].finish_reason == "length"
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (8, 40)
        options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": 2}
        events = list(client.completions.create(model="tiny", **asked, **options))
        assert "".join(event.choices[0].text for event in events[:-1]) == whole.choices[0].text
        assert events[-1].usage.total_tokens == 48
        assert len(events[0].choices[0].logprobs.top_logprobs[0]) == 2
        several = client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=3)
        assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
        with pytest.raises(openai.NotFoundError, match="one model, 'tiny'"):
            client.completions.create(model="gpt-9", prompt="a")
        with pytest.raises(openai.BadRequestError, match="1,000,000 tokens") as problem:
            client.completions.create(model="tiny", prompt="x" * 1_000_000)
        assert problem.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError, match="knows no roles"):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("bug", [RuntimeError("an accident"), OSError("too many open files")])
def test_a_bug_is_answered_and_shown(
    bug: Exception, server: ModelServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def encode(_request: CompletionRequest) -> list[list[int]]:
        raise bug

    monkeypatch.setattr(server.engine, "encode", encode)
    status, answer = ask(server, COMPLETIONS, {"prompt": "the mill"})
    assert (status, answer["error"]["type"]) == (500, "server_error")
    assert "the terminal" in answer["error"]["message"].lower()
    assert f"{type(bug).__name__}: {bug}" in capfd.readouterr().err


def test_a_bug_ends_a_stream_that_has_begun(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def complete(*_: object) -> Iterator[list[object]]:
        yield []
        raise RuntimeError("an accident")

    monkeypatch.setattr(server.engine, "complete", complete)
    body = json.dumps({"prompt": "the mill", "stream": True})
    with socket.create_connection((LOOPBACK, server.server_port), timeout=10) as connection:
        head = f"POST {COMPLETIONS} HTTP/1.0\r\nHost: {LOOPBACK}:{server.server_port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.0 200") and answer.count(b"HTTP/1.0") == 1
    assert b"[DONE]" not in answer
    assert "RuntimeError: an accident" in capfd.readouterr().err


def test_bad_requests(server: ModelServer) -> None:
    assert ask(server, COMPLETIONS, b"{nonsense")[1]["error"]["message"].startswith("the body is not valid JSON")
    status, answer = ask(server, COMPLETIONS, b" " * (100 << 20))
    assert status == 413
    assert f"at most {MOST_BODY_BYTES:,}" in answer["error"]["message"]
    assert ask(server, COMPLETIONS, [1] * 1_000_000)[0] == 400
    assert ask(server, COMPLETIONS, {"prompt": [1] * 1_000_000})[1]["error"]["code"] == "context_length_exceeded"
    assert ask(server, COMPLETIONS, {"prompt": "a " * 1_000_000})[1]["error"]["code"] == "context_length_exceeded"
    assert ask(server, COMPLETIONS, {}, Content_Type="text/plain")[0] == 415
    assert ask(server, COMPLETIONS, {}, Content_Length="many")[0] == 411
    assert ask(server, COMPLETIONS, method="GET")[0] == 404
    assert ask(server, COMPLETIONS, {}, method="PUT")[0] == 501
    for path in ("/v1/models/other", "/etc/passwd", "/../server.py", "/v1"):
        assert ask(server, path)[0] == 404, path
    for host in ("evil.example", f"evil.example:{server.server_port}", ""):
        assert ask(server, "/v1/models", Host=host)[0] == 421, host
    assert ask(server, COMPLETIONS, {"prompt": "a"})[0] == 200


def test_a_token_is_needed_where_there_is_one() -> None:
    with serving(token="secret") as server:
        assert ask(server, "/")[0] == 200
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer sécret"}):
            status, answer = ask(server, "/v1/models", **given)
            assert status == 401
            assert answer["error"]["code"] == "invalid_api_key"
            assert ask(server, COMPLETIONS, {"prompt": "a"}, **given)[0] == 401
        assert ask(server, COMPLETIONS, {"prompt": "a"}, Authorization="Bearer secret", Host="any.example")[0] == 200


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""))


def open_request(server: ModelServer, **asked: object) -> socket.socket:
    """Send a request and do not wait for its answer."""
    body = json.dumps(asked).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {LOOPBACK}:{server.server_port}\r\nContent-Type: application/json\r\n"
    client = socket.create_connection((LOOPBACK, server.server_port), timeout=30)
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return client


def wait_for_connections(others: set[threading.Thread]) -> None:
    """Wait for the threads of connections to end, except the others, which were there before."""
    for thread in set(threading.enumerate()) - others:
        if "process_request" in thread.name:
            thread.join(timeout=30)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_stops_its_computing(server: ModelServer, is_streamed: bool) -> None:
    engine = server.engine
    before, others = engine.num_steps, set(threading.enumerate())
    client = open_request(server, prompt="a", max_tokens=4000, stream=is_streamed)
    while engine.num_steps < before + 5:
        pass
    client.close()
    other = ask(server, COMPLETIONS, {"prompt": "b", "max_tokens": 50, "seed": 1})
    assert other[1]["choices"][0]["text"] == expected_text(server, prompt="b", max_tokens=50, seed=1)
    assert engine.num_steps - before < 1000
    wait_for_connections(others)
    assert engine.num_steps - before < 1000


def test_too_many_connections_are_told_so(server: ModelServer) -> None:
    others = set(threading.enumerate())
    idle = [socket.create_connection((LOOPBACK, server.server_port)) for _ in range(MOST_CONNECTIONS)]
    status, answer = ask(server, "/v1/models")
    assert status == 503
    assert "connections are open already" in answer["error"]["message"]
    for connection in idle:
        connection.close()
    wait_for_connections(others)
    assert ask(server, "/v1/models")[0] == 200


def load(server: ModelServer, num_requests: int, num_clients: int) -> None:
    """Send many requests at once, cut some off, and compare every other answer with the one computed alone."""
    rng = random.Random(0)
    plan = [
        {"prompt": f"number {number}", "max_tokens": rng.randint(1, 12), "seed": number, "stream": bool(number % 2)}
        for number in range(num_requests)
    ]
    expected = [expected_text(server, **asked) for asked in plan]

    def send(number: int) -> str | None:
        if number % 10 == 3:
            with open_request(server, **{**plan[number], "max_tokens": 3000}) as client:
                client.recv(10) if plan[number]["stream"] else None
            return None
        status, answer = ask(server, COMPLETIONS, plan[number])
        assert status == 200, answer
        if not plan[number]["stream"]:
            return str(answer["choices"][0]["text"])
        lines = answer["text"].strip().split("\n\n")
        assert lines[-1] == "data: [DONE]"
        return "".join(json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines[:-1])

    with ThreadPoolExecutor(num_clients) as clients:
        answers = list(clients.map(send, range(num_requests)))
    wrong = [i for i, answer in enumerate(answers) if answer is not None and answer != expected[i]]
    assert wrong == []
    assert sum(answer is not None for answer in answers) == num_requests - num_requests // 10


def test_two_hundred_requests_from_sixteen_clients() -> None:
    others = set(threading.enumerate())
    with serving() as server:
        load(server, 20, 16)
        before = psutil.Process().memory_info().rss
        load(server, 200, 16)
        wait_for_connections(others)
        left = set(threading.enumerate()) - others
        assert not [thread for thread in left if "process_request" in thread.name]
        assert psutil.Process().memory_info().rss - before < 64 << 20


def test_the_command(tmp_path: Path, command: Command) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    run = tmp_path / "poet"
    hr.train(**settings(tmp_path / "a.txt", run, **{"training.max_steps": 2}))
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        code, _, err = command("serve", run, "--port", taken.getsockname()[1])
    assert code == 1
    assert "cannot be opened" in err
    code, _, err = command("serve", tmp_path / "none")
    assert code == 1
    assert "no such run" in err
    environment = {**os.environ, "HEADRACE_TOKEN": "open sesame"}
    arguments = [sys.executable, "-m", "headrace", "serve", str(run), "--host", "0.0.0.0", "--json"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("serving poet at http://0.0.0.0:")
    assert 'api_key="open sesame", model="poet"' in process.stdout.readline()
    found = json.loads(process.stdout.readline())
    assert (found["model"], found["token"]) == ("poet", "open sesame")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
