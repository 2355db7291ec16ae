"""A small stand-in for the hub's HTTP interface: one repository in memory, and answers that go wrong on demand.

What is pushed can be downloaded again: files of the repository are at OWNER/NAME/resolve/REVISION/FILE.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """The stand-in. `status` is what it answers to everything where it is not 200; 0: it never answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.fails_at = ""
        """A part of the path at which `status` is answered; empty: at every path."""
        self.repo = "me/mine"
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        """The downloads that were asked for."""
        self.cut_after = 0
        """Bytes after which the connection ends in the middle of a download; 0: it does not."""
        self.objects: dict[str, bytes] = {}
        self.created: dict[str, Any] = {}
        self.released = threading.Event()

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that went away: tests make them."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    timeout = 10.0  # or an idle connection that a client keeps would keep its thread for ever

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self._goes_wrong():
            return
        if self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            self._answer({"url": f"{self.server.address}/me/mine"})
        elif self.path == "/api/validate-yaml":
            self._answer({"warnings": [], "errors": []})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [("lfs" if name.endswith(".safetensors") else "regular") for name in names]
            files = [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in zip(names, modes, strict=True)]
            self._answer({"files": files})
        elif self.path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            upload = [{**o, "actions": {"upload": {"href": f"{self.server.address}/lfs/{o['oid']}"}}} for o in wanted]
            self._answer({"transfer": "basic", "objects": upload})
        elif "/commit/" in self.path:
            self._commit([json.loads(line) for line in body.splitlines()])
        else:
            self._answer([])

    def do_PUT(self) -> None:
        self.server.objects[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._goes_wrong():
            self._answer({})

    def do_GET(self) -> None:
        if self._goes_wrong():
            return
        if "/resolve/" in self.path:
            self._send_file(with_body=True)
        else:
            self._answer({"id": "me/mine", "name": "me", "type": "user", "orgs": []})

    def do_HEAD(self) -> None:
        if not self._goes_wrong():
            self._send_file(with_body=False)

    def _send_file(self, with_body: bool) -> None:
        """Send a file of the repository as the hub does: with its commit and its ETag, in ranges if asked to."""
        self.server.requests.append(f"{self.command} {self.path}")
        repo, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("?")[0].partition("/")
        content = self.server.files.get(name)
        is_there = repo == self.server.repo and revision in ("main", COMMIT)
        if content is None or not is_there:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if is_there else "RepoNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        cut = self.server.cut_after if with_body else 0
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content[:cut] if cut else content)
            if cut:
                self.close_connection = True

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[value["path"]] = self.server.objects[value["oid"]]
        commit = {"commitOid": COMMIT, "commitUrl": f"{self.server.address}/me/mine/commit/{COMMIT}"}
        self._answer({"success": True, **commit})

    def _goes_wrong(self) -> bool:
        if self.server.status == 200 or self.server.fails_at not in self.path:
            return False
        if self.server.status == 0:
            self.server.released.wait()
            return True
        self._answer({"error": "as the test wants it"}, self.server.status)
        return True

    def _answer(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def hub_stand_in() -> Iterator[Hub]:
    """Serve the stand-in on localhost for as long as it is needed."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.released.set()
            hub.shutdown()
            thread.join()
