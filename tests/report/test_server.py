"""The server of `headrace watch`: one page, for this machine only, never stale for long and never a burden."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.report.server import ADDRESS, LivePage, PageServer, open_server
from tests.report.run_folder import write_run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    with PageServer(LivePage([write_run(tmp_path / "run")]), port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: PageServer, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection(ADDRESS, server.server_port, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers.get("ETag", "")


def test_the_page_and_nothing_else_is_served(server: PageServer) -> None:
    status, page, version = ask(server)
    assert status == 200
    assert page.startswith(b"<!doctype html>")
    assert ask(server, If_None_Match=version)[:2] == (304, b"")
    assert ask(server, method="HEAD")[:2] == (200, b"")
    for path in ("/metrics.jsonl", "/../run/config.json", "//etc/passwd", "/?x", "/report.html"):
        assert ask(server, path)[0] == 404, path
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, method=method)[0] == 501


def test_other_hosts_are_refused(server: PageServer) -> None:
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", ADDRESS, f"{ADDRESS}:{port + 1}", ""):
        assert ask(server, Host=host)[0] == 421, host
    assert ask(server, Host=f"localhost:{port}")[0] == 200
    assert server.server_address[0] == "127.0.0.1"


def test_a_page_is_written_again_when_the_run_went_on(tmp_path: Path) -> None:
    folder, now = write_run(tmp_path / "run"), [0.0]
    page = LivePage([folder], clock=lambda: now[0])
    first = page.read()
    assert page.read() is first
    now[0] += 1
    page.read()
    lines = (folder / "metrics.jsonl").read_text().replace('"step": 40', '"step": 45')
    (folder / "metrics.jsonl").write_text(lines)
    assert b"45 steps" not in first
    now[0] += 1
    assert b"45 steps" in page.read()


def test_a_page_that_takes_long_is_written_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = [0.0], []

    def slow_report(_folders: object, is_live: bool) -> str:
        now[0] += 1
        written.append(now[0])
        return f"page {len(written)}, live: {is_live}"

    monkeypatch.setattr("headrace.report.server.report", slow_report)
    page = LivePage([tmp_path], clock=lambda: now[0])
    for number in range(60):
        (tmp_path / str(number)).touch()
        page.read()
        now[0] += 1
    assert len(written) <= 4


def test_a_run_without_steps_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    page = LivePage([folder], clock=lambda: float(os.times().elapsed))
    assert b"no metrics yet" in page.read()


def test_ports(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = server.server_port
    with pytest.raises(HeadraceError, match=f"port {taken}: cannot be opened"):
        open_server(server.page, taken)
    monkeypatch.setattr("headrace.report.server.FIRST_PORT", taken)
    with open_server(server.page) as second:
        assert taken < second.server_port < taken + 100
    monkeypatch.setattr("headrace.report.server.MOST_PORTS", 1)
    with pytest.raises(HeadraceError, match=r"no free port.*--port"):
        open_server(server.page)


def test_the_command_ends_cleanly(tmp_path: Path, command: Command) -> None:
    folder = write_run(tmp_path / "run")
    with socket.socket() as taken:
        taken.bind((ADDRESS, 0))
        taken.listen()
        code, _, err = command("watch", folder, "--port", taken.getsockname()[1])
    assert code == 1
    assert "cannot be opened" in err
    code, _, err = command("watch", tmp_path / "none")
    assert code == 1
    assert "no such run directory" in err
    watching = subprocess.Popen(
        [sys.executable, "-m", "headrace", "watch", str(folder), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    line = watching.stdout.readline()
    assert f"watching {folder} at http://127.0.0.1:" in line
    assert json.loads(watching.stdout.readline())["url"] in line
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=20)
    assert (watching.returncode, out, err) == (0, "", "")
