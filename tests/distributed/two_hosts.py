"""Two hosts on one machine: network namespaces with an address each, a cable between them, and names of their own.

As a script it makes them, runs a command in each, and removes them:

    python -m tests.distributed.two_hosts "ping -c1 10.89.7.2" "ping -c1 10.89.7.1"

Needs Linux, `ip` (iproute2), `unshare` (util-linux) and the right to make namespaces (root).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from types import TracebackType

ADDRESSES = ("10.89.7.1", "10.89.7.2")
DEVICE = "mill0"
TCP_RETRIES = 5  # about 13 s


class TwoHosts:
    """Made on entering, removed on leaving, whatever happens between."""

    def __init__(self) -> None:
        self.names = [f"headrace-{os.getpid()}-{number}" for number in (0, 1)]

    def __enter__(self) -> TwoHosts:
        cable = [f"hr{os.getpid()}{end}" for end in "ab"]  # at most 15 letters
        try:
            for name in self.names:
                _ip("netns", "add", name)
            _ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
            for name, end, address in zip(self.names, cable, ADDRESSES, strict=True):
                _ip("link", "set", end, "netns", name, "name", DEVICE)
                _ip("-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", DEVICE, "up")
                # torchrun's launcher waits for its store as long as TCP does: 15 minutes, unless the system is told.
                _ip("netns", "exec", name, "sh", "-c", f"echo {TCP_RETRIES} > /proc/sys/net/ipv4/tcp_retries2")
        except subprocess.CalledProcessError:
            self.remove()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.remove()

    def remove(self) -> None:
        for name in self.names:
            inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for pid in inside.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def start(self, host: int, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        name = self.names[host]
        inside = ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
        return subprocess.Popen([*inside, *command], env=environment, stderr=subprocess.PIPE, text=True)

    def cut_the_cable(self) -> None:
        _ip("-n", self.names[0], "link", "set", DEVICE, "down")


def why_not() -> str:
    """The reason why there can be no two hosts here; empty if there can."""
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"no `{tool}`: install iproute2 and util-linux"
    try:
        with TwoHosts():
            return ""
    except subprocess.CalledProcessError as problem:
        return f"no right to make network namespaces: {problem.stderr.strip()}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


if __name__ == "__main__":
    with TwoHosts() as hosts:
        started = [hosts.start(host, sys.argv[1 + host].split(), dict(os.environ)) for host in (0, 1)]
        sys.exit(max(process.wait() for process in started))
