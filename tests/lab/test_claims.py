"""Claims: one process holds a cell, a dead or sleeping one does not keep it, and two cannot take over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.lab.conftest import BENCHMARKS


def test_a_claim_keeps_others_out_until_it_is_released(tmp_path: Path) -> None:
    from lab import claims

    claim = claims.take(tmp_path)
    assert claim is not None
    assert claims.take(tmp_path) is None
    assert f"process {os.getpid()}" in claims.holder(tmp_path)
    claim.release()
    assert claims.holder(tmp_path) == ""
    with claims.take(tmp_path) or pytest.fail("the cell was free"):
        pass


def test_the_claim_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    from lab import claims

    code = f"import os, sys; sys.path.insert(0, {str(BENCHMARKS)!r}); from lab import claims;"
    code += f"from pathlib import Path; claims.take(Path({str(tmp_path)!r})); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert (tmp_path / "claim-0001").exists()
    with claims.take(tmp_path) or pytest.fail("the process is dead"):
        assert (tmp_path / "claim-0002").exists()


def test_the_claim_of_another_machine_is_free_when_it_is_old(tmp_path: Path) -> None:
    from lab import claims

    file = tmp_path / "claim-0007"
    file.write_text(json.dumps({"host": "elsewhere", "process": 1, "started": 0.0}))
    assert claims.take(tmp_path) is None
    old = time.time() - claims.STALE_S - 1
    os.utime(file, (old, old))
    with claims.take(tmp_path) or pytest.fail("nobody renewed it"):
        assert (tmp_path / "claim-0008").exists()


def test_one_of_many_takes_over(tmp_path: Path) -> None:
    from lab import claims

    file = tmp_path / "claim-0001"
    file.write_text("{}")
    os.utime(file, (1, 1))
    start, taken = threading.Barrier(8), []

    def rush() -> None:
        start.wait()
        claim = claims.take(tmp_path)
        if claim is not None:
            taken.append(claim)

    threads = [threading.Thread(target=rush) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    taken[0].release()


def test_a_claim_is_renewed_and_notices_that_it_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab import claims

    monkeypatch.setattr(claims, "RENEW_S", 0.01)
    lost = threading.Event()
    with claims.take(tmp_path, lost.set) or pytest.fail("the cell was free"):
        file = tmp_path / "claim-0001"
        os.utime(file, (1, 1))
        deadline = time.monotonic() + 5
        while file.stat().st_mtime < 100 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert file.stat().st_mtime > 100
        (tmp_path / "claim-0002").write_text("{}")
        assert lost.wait(5)
