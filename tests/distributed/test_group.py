"""A group of one, and one that cannot meet."""

from __future__ import annotations

import socket

import pytest

from headrace.distributed.cores import usable_cores
from headrace.distributed.group import ALONE, Joined, join
from headrace.distributed.launch import is_joined
from headrace.errors import TrainingError


def test_a_process_alone_is_a_group_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert not is_joined()
    group = join(timeout_s=1)
    assert group is ALONE
    assert (group.rank, group.world_size, group.is_main, group.num_cores) == (0, 1, True, len(usable_cores()))
    assert group.gather([1.0, 2.0], "testing") == [[1.0, 2.0]]
    assert group.from_main({"a": 1}, "testing") == {"a": 1}


def test_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        values = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(TrainingError, match=f"rank 0 of 2 cannot meet the others at 127.0.0.1:{port}"):
            Joined(timeout_s=5)
