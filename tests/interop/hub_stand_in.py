"""A small stand-in for the hub's HTTP interface: repositories in memory, and answers that go wrong on demand."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub(ThreadingHTTPServer):
    """The stand-in. `status` is what it answers to everything where it is not 200; 0: it never answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.fails_at = ""
        """A part of the path at which `status` is answered; empty: at every path."""
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self.created: dict[str, Any] = {}
        self.released = threading.Event()

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
        if not self._goes_wrong():
            self._answer({"id": "me/mine", "name": "me", "type": "user", "orgs": []})

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[value["path"]] = self.server.objects[value["oid"]]
        oid = "a" * 40
        self._answer({"success": True, "commitOid": oid, "commitUrl": f"{self.server.address}/me/mine/commit/{oid}"})

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
