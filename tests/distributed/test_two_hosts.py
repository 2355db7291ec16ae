"""Two machines as one run, over a real network between two namespaces; and what happens when its cable is cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.data.cache.cache import Cache
from tests.distributed.parallel_worker import train
from tests.distributed.test_parallel import corpus, largest_difference, losses, settings, wait_for_steps
from tests.distributed.two_hosts import ADDRESSES, DEVICE, TwoHosts, why_not

__all__ = ["corpus"]  # a fixture
pytestmark = pytest.mark.soak
PORT = 29400


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with TwoHosts() as made:
        yield made


def start(hosts: TwoHosts, host: int, values: dict[str, Any]) -> subprocess.Popen[str]:
    """torchrun on one of the hosts, as docs/scaling.md has it."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}", f"--local-addr={ADDRESSES[host]}"]
    launcher += [f"--rdzv-conf=is_host={int(host == 0)},read_timeout=10"]
    arguments = [f"{key}={json.dumps(value) if not isinstance(value, str) else value}" for key, value in values.items()]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"}
    return hosts.start(host, [*launcher, "-m", "headrace", "train", *arguments], environment)


def local_settings(corpus: Path, run: Path, host: int, **changes: Any) -> dict[str, Any]:
    """The run directory is shared; each host has its own copy of the text and its own cache."""
    own = run.parent / f"host{host}"
    shutil.copytree(corpus, own / "text")
    return settings(own / "text", run, **{"data.cache_dir": str(own / "cache"), **changes})


@pytest.mark.parametrize("disk", ["own", "shared"])
def test_two_hosts_are_the_same_run(hosts: TwoHosts, corpus: Path, tmp_path: Path, disk: str) -> None:
    train(settings(corpus, tmp_path / "alone"))
    run = tmp_path / "together"
    shared = settings(corpus, run, **{"data.cache_dir": str(tmp_path / "shared")})
    values = [shared if disk == "shared" else local_settings(corpus, run, host) for host in (0, 1)]
    started = [start(hosts, host, values[host]) for host in (0, 1)]
    said = [process.communicate(timeout=180)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert len(losses(run)) == 50
    assert largest_difference(tmp_path / "alone", run) < 1e-4
    for caches in values:
        assert Cache.open(caches["data.cache_dir"]).verify() == []


def test_a_cut_cable_is_an_error_on_both_hosts(hosts: TwoHosts, corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    endless = {"training.max_steps": 1_000_000, "run.timeout_seconds": 10}
    started = [start(hosts, host, local_settings(corpus, run, host, **endless)) for host in (0, 1)]
    wait_for_steps(run, 5)
    hosts.cut_the_cable()
    for rank, process in enumerate(started):
        _, said = process.communicate(timeout=180)
        assert process.returncode not in (0, None)
        assert f"rank {rank} of 2 lost another rank" in " ".join(said.split()), said
