"""The examples for neighbours, run as a user runs them: each stops, and goes on to the very end of an unbroken run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from tests.conftest import make_text
from tests.example_runs import END_OF_RUN

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("train_*.py"))
TIMEOUT_S = 300  # a run takes a few seconds: a hang ends the test, not the suite
STOP, STEPS = 3, 6


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(make_text(200_000))
    return path


def needs(module: str, extra: str) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed (pip install 'headrace[{extra}]')")


def run(name: str, *arguments: object, launcher: tuple[str, ...] = (), **environment: str) -> dict[str, Any]:
    """Run an example to its end and return its last line."""
    return last_line(start([*launcher, str(EXAMPLES / f"train_{name}.py"), *map(str, arguments)], **environment))


def run_in_turn(name: str, *runs: tuple[object, ...]) -> list[dict[str, Any]]:
    """Run an example once for each of these arguments, in processes that share its imports; return their last lines."""
    arguments = json.dumps([[str(argument) for argument in one] for one in runs])
    said = start([str(Path(__file__).with_name("example_runs.py")), str(EXAMPLES / f"train_{name}.py"), arguments])
    return [last_line(part) for part in said.split(END_OF_RUN)[: len(runs)]]


def start(command: list[str], **environment: str) -> str:
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment}
    command = [sys.executable, *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=settings)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    return done.stdout


def last_line(said: str) -> dict[str, Any]:
    return dict(json.loads(said.rstrip().splitlines()[-1]))


@pytest.fixture(scope="module")
def unbroken(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A plain PyTorch loop that never stopped. Other PyTorch examples train the same network on the same batches."""
    return run("torch", corpus, "--out", tmp_path_factory.mktemp("unbroken"), "--steps", STEPS)


@pytest.mark.parametrize(("name", "module"), [("torch", "torch"), ("torchdata", "torchdata.stateful_dataloader")])
def test_a_loop_stops_and_resumes(
    name: str, module: str, corpus: Path, tmp_path: Path, unbroken: dict[str, Any]
) -> None:
    needs(module.partition(".")[0], name)
    options = (corpus, "--out", tmp_path, "--steps")
    stopped, resumed = run_in_turn(name, (*options, STOP), (*options, STEPS))
    assert stopped["steps"] == STOP
    assert resumed == {**unbroken, "first_step": STOP}


def test_accelerate_resumes_with_another_number_of_processes(
    corpus: Path, tmp_path: Path, unbroken: dict[str, Any]
) -> None:
    needs("accelerate", "accelerate")
    run("accelerate", corpus, "--out", tmp_path, "--steps", STOP, ACCELERATE_USE_CPU="true")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2")
    arguments = (corpus, "--out", tmp_path, "--steps", STEPS)
    resumed = run("accelerate", *arguments, launcher=launcher, ACCELERATE_USE_CPU="true")
    assert (resumed["first_step"], resumed["steps"], resumed["processes"]) == (STOP, STEPS, 2)
    assert resumed["loss"] == pytest.approx(unbroken["loss"], rel=1e-5)


def test_lightning_stops_and_resumes(corpus: Path, tmp_path: Path) -> None:
    needs("lightning", "lightning")
    options = (corpus, "--save-every", STOP, "--out")
    stopped, resumed, whole = run_in_turn(
        "lightning",
        (*options, tmp_path / "stopped", "--steps", STOP),
        (*options, tmp_path / "stopped", "--steps", STEPS),
        (*options, tmp_path / "whole", "--steps", STEPS),
    )
    assert stopped["steps"] == STOP
    assert resumed == whole
    assert resumed["steps"] == STEPS


@pytest.mark.soak
def test_two_processes_of_lightning_train_on_the_same_batches(corpus: Path, tmp_path: Path) -> None:
    needs("lightning", "lightning")
    options = (corpus, "--steps", STEPS, "--save-every", STOP)
    one = run("lightning", *options, "--out", tmp_path / "one")
    two = run("lightning", *options, "--out", tmp_path / "two", "--devices", 2, MASTER_ADDR="127.0.0.1")
    assert two["processes"] == 2
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert two["validation_loss"] == pytest.approx(one["validation_loss"], rel=1e-3)  # up to one row is left out


def test_trainer_of_transformers_stops_and_resumes(corpus: Path, tmp_path: Path) -> None:
    needs("transformers", "trainer")
    options = (corpus, "--out", tmp_path, "--steps")
    _, resumed = run_in_turn("transformers", (*options, STOP), (*options, STEPS))
    assert (resumed["steps"], resumed["resumed"]) == (STEPS, True)


def test_a_grain_pipeline_trains(corpus: Path, tmp_path: Path) -> None:
    needs("grain", "grain")
    assert run("grain", corpus, "--out", tmp_path, "--steps", STEPS)["steps"] == STEPS


def test_a_token_file_trains(tmp_path: Path) -> None:
    assert run("token_files", "--out", tmp_path, "--steps", STEPS)["steps"] == STEPS  # it makes its own text


def test_workers_of_ray_share_the_batches(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of the Ray example without a cluster: shares of two workers, and of two more after a restart."""
    pytest.importorskip("ray", reason="pip install 'headrace[ray]'")
    pytest.importorskip("pandas", reason="pip install 'headrace[ray]'")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_ray

    cache = str(hr.prepare(corpus, tokenizer="bpe:300", out=tmp_path / "cache").path)
    with train_ray.make_loader(cache, 0, 1) as loader:
        whole = [next(loader).inputs for _ in range(STEPS)]
    shares: list[list[Any]] = []
    for rank in range(2):
        with train_ray.make_loader(cache, rank, 2) as loader:
            shares.append([next(loader).inputs for _ in range(STOP)])
            state = loader.state()
        with train_ray.make_loader(cache, rank, 2) as loader:
            loader.restore(state)
            shares[-1] += [next(loader).inputs for _ in range(STOP, STEPS)]
    np.testing.assert_array_equal(np.concatenate(shares, axis=1), whole)


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """A folder with a short path, because the paths of Ray's sockets must be; Ray's own settings go there too."""
    folder = tempfile.mkdtemp(prefix="ray")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.soak
def test_a_killed_worker_of_ray_comes_back_and_the_run_goes_on_from_its_checkpoint(
    corpus: Path, tmp_path: Path, ray_folder: str
) -> None:
    needs("ray", "ray")
    needs("pandas", "ray")
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": ray_folder, "HOME": ray_folder}
    options = (corpus, "--steps", 12, "--save-every", 4, "--workers", 2)
    killed = run("ray", *options, "--out", tmp_path / "killed", "--kill-at", 7, **environment)
    whole = run("ray", *options, "--out", tmp_path / "whole", **environment)
    assert (killed["first_step"], whole["first_step"]) == (4, 0)
    assert killed == {**whole, "first_step": 4}, "the same loss and bit-identical weights"


def test_every_neighbour_is_in_the_table_of_examples() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.name}`" in table for path in SCRIPTS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_an_example_is_short_and_needs_no_download(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "hr.standard_library()" in text or "sysconfig" in text
    assert len(text.splitlines()) < 150
