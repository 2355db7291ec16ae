"""Several processes are one run: the same samples and losses, one voice, and nobody waits for the dead."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from headrace.distributed.cores import usable_cores
from headrace.distributed.launch import STORE, Processes
from tests.conftest import make_text
from tests.distributed.parallel_worker import train
from tests.run import tiny_run

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
CASES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3-accumulating": {"training.micro_batch_size": 1},
    "gpt2": {"model.arch": "gpt2", "training.dropout": 0.2, "training.short_windows": 16},
    "gpt2-accumulating": {"model.arch": "gpt2", "training.micro_batch_size": 1},
    "sampled-related": {"data.tokenizer": "bpe:2000", "training.sampled_tokens": 32, "training.related_tokens": 0.5},
    "masked-untied": {"data.packing": "document", "model.tie_embeddings": False, "training.micro_batch_size": 2},
}
SHARDINGS = ("ddp", "fsdp")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(40):  # documents of many lengths: ranks have other numbers of targets
        (folder / f"{number}.txt").write_text(make_text(20 + 50 * number, seed=number))
    return folder


def settings(corpus: Path, out: Path, **changes: Any) -> dict[str, Any]:
    larger: dict[str, Any] = {
        "training.batch_size": 12, "training.micro_batch_size": 3, "training.max_steps": 50,
        "training.evaluate_every": 20, "training.save_every": 1000,  # the best is saved where nothing else is
    }  # fmt: skip
    if "data.tokenizer" in changes:
        larger["data.cache_dir"] = str(corpus.parent / f"cache-{changes['data.tokenizer'].replace(':', '-')}")
    return tiny_run.settings(corpus, out, **{**larger, **changes})


def train_together(num_processes: int, cases: list[dict[str, Any]], folder: Path) -> None:
    plan = folder / f"cases-{num_processes}.json"
    plan.write_text(json.dumps(cases))
    root = Path(__file__).parents[2]
    paths = {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.distributed.parallel_worker", str(plan)]
    with Processes(command, num_processes, paths) as processes:
        assert processes.wait(timeout_s=300) is None, "what they wrote to standard error says why"


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def rows_together(run: Path, num_steps: int, num_processes: int) -> list[list[str]]:
    """The rows of each update, all ranks put together."""
    parts = [json.loads((run / f"rows-{num_steps}-{rank}.json").read_text()) for rank in range(num_processes)]
    return [[row for part in update for row in part] for update in zip(*parts, strict=True)]


def largest_difference(one: Path, two: Path) -> float:
    return max(abs(a - b) for a, b in zip(losses(one), losses(two), strict=True))


@pytest.mark.parametrize(
    ("num_processes", "num_steps"), [(2, 12), *(pytest.param(n, 50, marks=pytest.mark.soak) for n in (2, 3, 4))]
)
def test_any_number_of_processes_is_the_same_run(
    corpus: Path, tmp_path: Path, num_processes: int, num_steps: int
) -> None:
    rows = {}
    cases = []
    length = {"training.max_steps": num_steps, "training.evaluate_every": num_steps * 2 // 5}
    for name, changes in CASES.items():
        fitting = {"training.micro_batch_size": 12 // num_processes} if name in ("qwen3", "gpt2") else {}
        if name == "masked-untied" and 12 // num_processes % 2:
            fitting = {"training.micro_batch_size": 1}
        rows[name] = train(settings(corpus, tmp_path / f"{name}-alone", **length, **changes))
        for sharding in SHARDINGS:
            together = {**length, **changes, **fitting, "run.sharding": sharding}
            cases.append({"settings": settings(corpus, tmp_path / f"{name}-{sharding}", **together), "stop_at": None})

    # Elastic: 1 process, then several with pieces (where the last rank alone asks to stop), then 1 again.
    elastic = settings(corpus, tmp_path / "elastic", **length, **{"run.sharding": "fsdp"})
    begin, end = num_steps // 4, num_steps * 3 // 5
    first = train(elastic, stop_at=begin)
    elastic["run.resume"] = True
    cases.append({"settings": elastic, "stop_at": end})
    train_together(num_processes, cases, tmp_path)
    last = train(elastic)

    for name, sharding in itertools.product(CASES, SHARDINGS):
        one, many = tmp_path / f"{name}-alone", tmp_path / f"{name}-{sharding}"
        assert rows_together(many, num_steps, num_processes) == rows[name]
        assert largest_difference(one, many) < 1e-4, many.name
        metrics = [
            [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, many)
        ]
        for alone, together in zip(*metrics, strict=True):
            assert alone["tokens"] == together["tokens"]
            assert together["seconds"]["data wait"] >= together["data_wait_mean_s"] - 1e-6
            assert ("aggregation" in together["seconds"]) == (sharding == "ddp")
        summaries = [json.loads((run / "summary.json").read_text()) for run in (one, many)]
        assert summaries[0]["validation_loss"] == pytest.approx(summaries[1]["validation_loss"], abs=1e-4)

    assert first + rows_together(tmp_path / "elastic", end - begin, num_processes) + last == rows["qwen3"]
    assert largest_difference(tmp_path / "elastic", tmp_path / "qwen3-alone") < 1e-3


@pytest.mark.soak
@pytest.mark.parametrize("arch", ["qwen3", "gpt2"])
def test_elastic_through_all_strategies(corpus: Path, tmp_path: Path, arch: str) -> None:
    """Stopped at random steps and resumed by another number of processes with another strategy."""
    values = settings(corpus, tmp_path / "elastic", **{"model.arch": arch})
    whole = train({**values, "run.out": str(tmp_path / "whole")})
    stops = sorted(random.Random(arch).sample(range(5, 46), 4))
    rows = train(values, stop_at=stops[0])
    values["run.resume"] = True
    stages = zip((2, 3, 2), ("ddp", "fsdp", "ddp"), itertools.pairwise(stops), strict=True)
    for num_processes, sharding, (begin, end) in stages:
        train_together(num_processes, [{"settings": {**values, "run.sharding": sharding}, "stop_at": end}], tmp_path)
        rows += rows_together(tmp_path / "elastic", end - begin, num_processes)
    rows += train(values)
    assert rows == whole
    assert largest_difference(tmp_path / "elastic", tmp_path / "whole") < 1e-3


def assert_same_checkpoints(one: Path, two: Path) -> None:
    for file in ("model.safetensors", "unaveraged.safetensors", "optimizer.safetensors"):
        ours, theirs = (load_file(run / "checkpoints" / "last" / file) for run in (one, two))
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name], atol=1e-4, rtol=1e-3)


def test_each_process_keeps_its_piece_of_the_state(corpus: Path, tmp_path: Path) -> None:
    """And the files of a checkpoint are those of a process alone, whose model is an average, or calibrated."""
    short = {"training.max_steps": 3, "training.evaluate_every": 3}
    values = settings(corpus, tmp_path / "alone", **short, **{"training.average": 0.5})
    train(values)
    calibrated = settings(corpus, tmp_path / "calibrated", **short, **{"training.calibrate": True})
    train(calibrated)
    factor = json.loads((tmp_path / "calibrated" / "summary.json").read_text())["calibrated_by"]
    assert abs(factor - 1) > 0.01, "or a group that does not calibrate would not be noticed"
    longer = {"training.max_steps": 6, "run.resume": True}
    cases = []
    for sharding in SHARDINGS:
        shutil.copytree(tmp_path / "alone", tmp_path / f"longer-{sharding}", symlinks=True)
        for name, changes in ((sharding, {}), (f"longer-{sharding}", longer)):
            changed = {**values, **changes, "run.out": str(tmp_path / name), "run.sharding": sharding}
            cases.append({"settings": changed, "stop_at": None})
        together = {**calibrated, "run.out": str(tmp_path / f"calibrated-{sharding}"), "run.sharding": sharding}
        cases.append({"settings": together, "stop_at": None})
    train_together(2, cases, tmp_path)
    for sharding in SHARDINGS:
        assert_same_checkpoints(tmp_path / "alone", tmp_path / sharding)
        assert_same_checkpoints(tmp_path / "calibrated", tmp_path / f"calibrated-{sharding}")
    sizes = [json.loads((tmp_path / "fsdp" / f"state-bytes-{rank}.json").read_text()) for rank in (0, 1)]
    alone = load_file(tmp_path / "alone" / "checkpoints" / "last" / "optimizer.safetensors")
    train({**values, **longer})
    for sharding in SHARDINGS:
        assert_same_checkpoints(tmp_path / "alone", tmp_path / f"longer-{sharding}")
    whole = sum(tensor.nbytes for tensor in alone.values())
    assert all(size < 0.55 * whole for size in sizes)


# Processes that are stopped and killed


def start(launcher: list[str], values: dict[str, Any], **variables: str) -> subprocess.Popen[str]:
    arguments = [f"{key}={json.dumps(value) if not isinstance(value, str) else value}" for key, value in values.items()]
    return subprocess.Popen(
        [*launcher, "-m", "headrace", "train", *arguments],
        env={**ENVIRONMENT, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_steps(run: Path, num_steps: int) -> None:
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not metrics.exists() or len(metrics.read_text().splitlines()) < num_steps:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def process_of(launcher: subprocess.Popen[str], rank: int) -> psutil.Process:
    children = psutil.Process(launcher.pid).children(recursive=True)
    return next(child for child in children if child.environ().get("RANK") == str(rank))


@pytest.mark.parametrize("whom", ["a rank", "the launcher"])
def test_a_signal_to_any_process_saves_once_and_exits_with_3(corpus: Path, tmp_path: Path, whom: str) -> None:
    run = tmp_path / "run"
    values = settings(corpus, run, **{"training.max_steps": 100_000, "run.processes": 2})
    with start([sys.executable], values) as launcher:
        wait_for_steps(run, 5)
        cores = [set(process_of(launcher, rank).cpu_affinity()) for rank in (0, 1)]
        if whom == "a rank":
            process_of(launcher, 1).send_signal(signal.SIGTERM)
        else:
            launcher.send_signal(signal.SIGHUP)
        _, said = launcher.communicate(timeout=30)
    assert launcher.returncode == 3, said
    assert said.count("stopped and saved") == 1
    state = json.loads((run / "checkpoints" / "last" / "state.json").read_text())
    assert state["step"] == len(losses(run)) == state["loader"]["step"]
    assert state["processes"] == 2
    if len(usable_cores()) > 1:
        assert not cores[0] & cores[1], "each process has cores of its own"


@pytest.mark.parametrize("sharding", ["ddp", pytest.param("fsdp", marks=pytest.mark.soak)])
def test_a_killed_rank_is_named_by_the_others(corpus: Path, tmp_path: Path, sharding: str) -> None:
    changes = {"training.max_steps": 100_000, "run.processes": 2, "run.sharding": sharding}
    values = settings(corpus, tmp_path / "run", **changes)
    with start([sys.executable], values) as launcher:
        wait_for_steps(tmp_path / "run", 3)
        victim = process_of(launcher, 1)
        victim.kill()
        _, said = launcher.communicate(timeout=30)
    assert launcher.returncode == 1
    assert f"rank 0 of 2 lost rank 1 (process {victim.pid}, which has ended) while" in " ".join(said.split())
    assert "rank 1 was ended by SIGKILL" in said


@pytest.mark.soak
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_rank_that_hangs_is_not_waited_for_forever(corpus: Path, tmp_path: Path, sharding: str) -> None:
    changes = {"training.max_steps": 100_000, "run.processes": 2, "run.sharding": sharding, "run.timeout_seconds": 5}
    with start([sys.executable], settings(corpus, tmp_path / "run", **changes)) as launcher:
        wait_for_steps(tmp_path / "run", 3)
        process_of(launcher, 1).send_signal(signal.SIGSTOP)
        _, said = launcher.communicate(timeout=90)  # the one that hangs has 35 s to end by itself
    assert launcher.returncode == 1
    assert "rank 0 of 2 lost another rank (it hangs, or it is on another machine) while" in " ".join(said.split())


@pytest.mark.soak
def test_torchrun_restarts_from_the_last_checkpoint(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings(corpus, tmp_path / "undisturbed", **{"training.max_steps": 300}))
    changes = {"training.max_steps": 300, "training.save_every": 10, "run.resume": "auto"}
    # torchrun opens no port when it meets itself in a file and shares no store; the ranks meet in a file anyway.
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=1"]
    launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={tmp_path / 'rendezvous'}", "--rdzv-conf=store_type=file"]
    private = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", STORE: str(tmp_path / "store"), "GLOO_SOCKET_IFNAME": "lo"}
    with start(launcher, settings(corpus, run, **changes), **private) as launched:
        wait_for_steps(run, 25)
        process_of(launched, 1).kill()
        _, said = launched.communicate(timeout=120)
    assert launched.returncode == 0, said
    assert len(losses(run)) == 300
    assert largest_difference(run, tmp_path / "undisturbed") < 1e-3
