"""A stand-in for the dataset part of the hub: repositories in memory, listed and read as the hub's own client does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from urllib.parse import unquote

from tests.data.corpus.remote.web_server import Answer, Request, WebServer, web_server


class Hub:
    """Datasets by name (`me/mine`), each with its files; every change is a new commit."""

    def __init__(self, server: WebServer) -> None:
        self.server = server
        self.datasets: dict[str, dict[str, bytes]] = {}
        self.commits: dict[str, dict[str, bytes]] = {}
        self.tokens: list[str] = []
        self.private: set[str] = set()
        server.trouble = self.answer

    def commit(self, name: str) -> str:
        """Return the commit that a dataset is at."""
        files = self.datasets[name]
        oid = sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[oid] = dict(files)
        return oid

    def answer(self, request: Request, answer: Answer) -> None:
        """Answer a request, in place of the server's own answer."""
        self.tokens.append(request.headers.get("authorization", ""))
        parts = unquote(request.path.partition("?")[0]).strip("/").split("/")
        if parts[:2] == ["api", "datasets"]:
            self._describe(parts[2:], answer)
        elif parts[0] == "datasets" and parts[3] == "resolve":
            self._send(parts[4], "/".join(parts[5:]), request, answer)

    def _describe(self, parts: list[str], answer: Answer) -> None:
        name, rest = "/".join(parts[:2]), parts[2:]
        answer.headers = {"Content-Type": "application/json"}
        if name not in self.datasets or name in self.private:
            answer.status, answer.headers["X-Error-Code"], answer.body = 401, "RepoNotFound", b"{}"
            return
        if rest[:1] == ["tree"]:
            files = self.commits[rest[1]]
            found = list(_tree(files, "/".join(rest[2:])))
            answer.status, answer.body = (200, json.dumps(found).encode()) if found else (404, b"{}")
            if not found:
                answer.headers["X-Error-Code"] = "EntryNotFound"
            return
        revision = rest[1] if rest[:1] == ["revision"] else "main"
        oid = self.commit(name) if revision == "main" else revision
        if oid not in self.commits:
            answer.status, answer.headers["X-Error-Code"], answer.body = 404, "RevisionNotFound", b"{}"
            return
        answer.status, answer.body = 200, json.dumps({"id": name, "sha": oid, "siblings": []}).encode()

    def _send(self, oid: str, path: str, request: Request, answer: Answer) -> None:
        body = self.commits[oid][path]
        begin, _, end = request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        stop = min(int(end) + 1, len(body)) if end else len(body)
        answer.status, answer.body = 206, body[int(begin) : stop]
        answer.headers = {"Content-Range": f"bytes {begin}-{stop - 1}/{len(body)}"}


def _tree(files: dict[str, bytes], folder: str) -> Iterator[dict[str, object]]:
    folders: set[str] = set()
    prefix = f"{folder}/" if folder else ""
    for path, data in sorted(files.items()):
        if path.startswith(prefix):
            parts = path.split("/")
            folders |= {"/".join(parts[:depth]) for depth in range(prefix.count("/") + 1, len(parts))}
            yield {"type": "file", "path": path, "size": len(data), "oid": sha1(data).hexdigest()}
    for path in sorted(folders):
        yield {"type": "directory", "path": path, "size": 0, "oid": sha1(path.encode()).hexdigest()}


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Serve until the block ends."""
    with web_server() as server:
        yield Hub(server)
