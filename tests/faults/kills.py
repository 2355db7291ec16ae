"""Processes killed without warning: the next start goes on, and nothing is different in the end."""

from __future__ import annotations

import signal
import time

import psutil

from tests.conftest import make_text
from tests.faults.bench import Workbench, fault


@fault("kill", "SIGKILL training three times, resume each time: the weights of an unbroken run")
def killed_training(bench: Workbench) -> None:
    bench.run(*bench.training("unbroken")).expect(0)
    process = bench.start(*bench.training())
    for step in (3, 14, 27):
        bench.wait_for_step(step, process)
        process.kill()
        bench.end(process)
        process = bench.start("train", "--resume", bench.folder / "run", "--json")
    bench.end(process).expect(0)
    assert bench.weights() == bench.weights("unbroken"), "other weights than the unbroken run's"


@fault("kill", "SIGKILL training before its first checkpoint, resume: starts again from its configuration and says so")
def killed_before_the_first_checkpoint(bench: Workbench) -> None:
    process = bench.start(
        *bench.training(training__save_every=1000, training__evaluate_every=1000, training__max_steps=300)
    )
    bench.wait_for_step(2, process)
    process.kill()
    bench.end(process)
    outcome = bench.run("train", "--resume", bench.folder / "run", "training.max_steps=10", "--json").expect(0)
    assert outcome.result["steps"] == 10


@fault("kill", "SIGKILL prepare at three moments, prepare again: a whole cache, and nothing left behind")
def killed_prepare(bench: Workbench) -> None:
    folder = bench.folder / "texts"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.txt").write_text(make_text(2_000_000, seed=number), encoding="utf-8")
    cache = bench.folder / "cache"
    command = ("prepare", folder, "--tokenizer", "byte", "--out", cache, "--json")
    for delay in (0.0, 0.05, 0.2):
        process = bench.start(*command)
        bench.wait_for(lambda: (cache / "shards").exists(), process, "the cache")
        time.sleep(delay)
        process.kill()
        bench.end(process)
    bench.run(*command).expect(0)
    bench.run("inspect", cache, "--verify").expect(0)
    leftovers = [path.name for path in cache.rglob("*.tmp")] + [path.name for path in (cache / "tmp").glob("*~*")]
    assert not leftovers, f"left behind: {leftovers}"


@fault("kill", "SIGKILL the launcher of two processes: no rank outlives it")
def killed_launcher(bench: Workbench) -> None:
    process = bench.start(*bench.training(run__processes=2, training__max_steps=100_000))
    bench.wait_for_step(3, process)
    ranks = psutil.Process(process.pid).children(recursive=True)
    assert ranks, "no process was started"
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(ranks, timeout=20)
    for rank in alive:
        rank.send_signal(signal.SIGKILL)
    assert not [rank for rank in alive if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE], (
        "a rank lives on"
    )
