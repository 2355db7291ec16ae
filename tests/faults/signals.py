"""Signals that ask a process to end: it saves, says so, and can be resumed."""

from __future__ import annotations

import signal
import time

import psutil

from tests.conftest import make_text
from tests.faults.bench import Workbench, fault


def _stop_and_resume(bench: Workbench, number: signal.Signals, **changes: object) -> None:
    process = bench.start(*bench.training(training__max_steps=3000, **changes))
    bench.wait_for_step(8, process)
    process.send_signal(number)
    bench.end(process, seconds=60).expect(3)
    bench.run(
        "train", "--resume", bench.folder / "run", "training.max_steps=3001", "training.max_minutes=0.05", "--json"
    ).expect(0)


@fault("signal", "SIGTERM while training: saved, exit code 3, resumed")
def terminated_training(bench: Workbench) -> None:
    _stop_and_resume(bench, signal.SIGTERM)


@fault("signal", "SIGINT while training: saved, exit code 3, resumed")
def interrupted_training(bench: Workbench) -> None:
    _stop_and_resume(bench, signal.SIGINT)


@fault("signal", "SIGHUP while training: saved, exit code 3, resumed")
def hung_up_training(bench: Workbench) -> None:
    _stop_and_resume(bench, signal.SIGHUP)


@fault("signal", "SIGHUP to the launcher of two processes: saved, exit code 3, resumed")
def hung_up_launcher(bench: Workbench) -> None:
    _stop_and_resume(bench, signal.SIGHUP, run__processes=2)


@fault("signal", "SIGTERM while tokenising: ends within 2 s with exit code 3")
def terminated_prepare(bench: Workbench) -> None:
    text = bench.folder / "large.txt"
    text.write_text(make_text(2_000_000) * 100, encoding="utf-8")
    process = bench.start("prepare", text, "--tokenizer", "bpe:1000", "--out", bench.folder / "cache")
    bench.wait_for(lambda: (bench.folder / "cache" / "shards").exists(), process, "the cache")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    bench.end(process).expect(3)
    assert time.monotonic() - began < 2.5, f"took {time.monotonic() - began:.1f} s to end"


@fault("signal", "SIGTERM to the launcher before its ranks exist: everything ends, nothing is left running")
def terminated_launcher_early(bench: Workbench) -> None:
    for delay in (0.3, 1.5, 3.0):
        process = bench.start(*bench.training(f"run-{delay}", run__processes=2, training__max_steps=100_000))
        time.sleep(delay)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        outcome = bench.end(process, seconds=60)
        assert outcome.code in (3, -signal.SIGTERM), f"exit code {outcome.code} after {delay} s"
        assert "Traceback" not in outcome.stderr, outcome.stderr[-300:]
        _, alive = psutil.wait_procs(family, timeout=10)
        assert not alive, f"{len(alive)} processes live on after {delay} s"
