"""Several processes on one machine are nobody else's business: no socket of theirs listens to the network."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.conftest import make_text
from tests.run import tiny_run


def strangers_doors(process: subprocess.Popen[str]) -> set[str]:
    """Every address that a process or a descendant of it listens on for other machines, seen until it ends."""
    found: set[str] = set()
    while process.poll() is None:
        time.sleep(0.02)
        try:
            top = psutil.Process(process.pid)
            for member in [top, *top.children(recursive=True)]:
                for connection in member.net_connections(kind="inet"):
                    is_open = connection.status == psutil.CONN_LISTEN
                    if is_open and not ipaddress.ip_address(connection.laddr.ip).is_loopback:
                        found.add(f"{connection.laddr.ip}:{connection.laddr.port} of {' '.join(member.cmdline()[:4])}")
        except psutil.NoSuchProcess:
            continue
    return found


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    # A cluster's setting, which must not open a run on one machine.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "no-such-interface", **variables}
    return subprocess.Popen([sys.executable, *arguments], env=environment, stderr=subprocess.PIPE, text=True)


def test_training_in_two_processes_listens_to_this_machine_only(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(make_text(20_000))
    values = tiny_run.settings(tmp_path / "corpus.txt", tmp_path / "run", **{"run.processes": 2})
    arguments = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
    with start("-m", "headrace", "train", *arguments) as launcher:
        assert strangers_doors(launcher) == set()
        assert launcher.returncode == 0, launcher.stderr and launcher.stderr.read()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 12


def test_scale_listens_to_this_machine_only(tmp_path: Path) -> None:
    code = (
        "from headrace.run.config import Config; from headrace.instruments.scaling import Way, scale;"
        "config = Config.model_validate({'model': {'d_model': 32, 'num_layers': 1, 'num_heads': 2, 'vocab_size': 64},"
        " 'training': {'batch_size': 4, 'max_length': 16, 'precision': 'float32', 'matmul': 'default'}});"
        "print(scale(config, [Way(2, 1)], 1, 1))"
    )
    with start("-c", code, HEADRACE_CACHE=str(tmp_path)) as measuring:
        assert strangers_doors(measuring) == set()
        assert measuring.returncode == 0, measuring.stderr and measuring.stderr.read()
