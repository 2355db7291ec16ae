"""Run directories made to do harm: links that lead elsewhere, names that are not a checkpoint's, foreign files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import CheckpointError, HeadraceError
from headrace.files import read_checked_json, write_checked_json
from headrace.machine.hardware import find_hardware
from headrace.report import report
from headrace.run.config import Config
from headrace.run.machine import FORMAT, remembered_machine
from headrace.run.remembered_scaling import FORMAT as SCALING_FORMAT
from headrace.run.remembered_scaling import _path as scaling_path
from headrace.run.remembered_scaling import remembered_scaling
from headrace.run.start.find import find_checkpoint
from headrace.training.checkpoint import Checkpoints
from headrace.training.restore import read_state
from tests.conftest import make_text
from tests.report.run_folder import write_run
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "a.txt").write_text(make_text(20_000))
    hr.train(**settings(folder / "a.txt", folder / "run", **{"training.max_steps": 2, "training.save_every": 1}))
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained / "run", tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def resume(trained: Path, run: Path) -> None:
    changes = {"training.max_steps": 3, "run.resume": True, "run.tensorboard": True}
    hr.train(**settings(trained / "a.txt", run, **changes))


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "samples.txt", "run.lock", "tensorboard", "wandb", "mlflow.db", "checkpoints"]
)
def test_a_run_writes_nothing_through_a_link(trained: Path, run: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    if (run / name).exists():
        (run / name).rename(outside)
    (run / name).symlink_to(outside)
    with pytest.raises(HeadraceError, match=f"{name}: is a link"):
        resume(trained, run)
    if name == "tensorboard":
        assert not outside.exists()


@pytest.mark.parametrize("target", ["../../elsewhere", "/", ".", "best", "step-00000001/.."])
@pytest.mark.parametrize("link", ["last", "best"])
def test_links_that_are_not_to_a_checkpoint_are_refused(run: Path, link: str, target: str) -> None:
    path = run / "checkpoints" / link
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    with pytest.raises(CheckpointError, match=f"{link}: leads to .*, which is no checkpoint beside it"):
        Checkpoints(run / "checkpoints").find(link)
    if link == "best":
        with pytest.raises(CheckpointError, match="best: leads to"):
            find_checkpoint(run)


@pytest.mark.parametrize("name", ["../config.json", "/etc/hostname", ".."])
def test_names_in_a_state_stay_in_their_checkpoint(run: Path, name: str) -> None:
    checkpoint = (run / "checkpoints" / "last").resolve()
    state = read_checked_json(checkpoint / "state.json")
    state["files"][name] = "0" * 40
    write_checked_json(checkpoint / "state.json", state)
    with pytest.raises(CheckpointError, match="is not the name of a file of a checkpoint"):
        read_state(checkpoint)


NESTED = b"[" * 100_000
FOREIGN = [b"\xff\xfe", NESTED, b"{}", b"[]", b"3", b"null", b'{"versions": 3}', b'{"step": 1, "seconds": []}']


@pytest.mark.parametrize("content", FOREIGN)
@pytest.mark.parametrize(
    "name", ["environment.json", "corpus.json", "ledger.json", "tune.json", "summary.json", "samples.txt", "run.lock"]
)
def test_a_report_does_without_what_it_cannot_read(tmp_path: Path, name: str, content: bytes) -> None:
    run = write_run(tmp_path / "run")
    (run / name).write_bytes(content)
    assert "run" in report([run], markdown=True)


@pytest.mark.parametrize("content", [b"\xff\xfe", NESTED, b"{}", b"[]", b'{"model": {}, "training": 3, "data": {}}'])
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_report_without_its_basis_is_one_message(command: Command, tmp_path: Path, name: str, content: bytes) -> None:
    run = write_run(tmp_path / "run")
    (run / name).write_bytes(content)
    code, _, err = command("report", run)
    assert code == 1
    assert name in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "change",
    [
        {"loss": "low"},
        {"seconds": 3},
        {"seconds": {"data wait": "long"}},
        {"step_s": None},
        {"elapsed_s": []},
        {"queue_depth": "deep"},
    ],
)
def test_a_line_of_metrics_with_other_types_is_left_out(tmp_path: Path, change: dict[str, object]) -> None:
    run = write_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[7] = json.dumps(json.loads(lines[7]) | change)
    (run / "metrics.jsonl").write_text("\n".join(lines))
    assert "line 8 of metrics.jsonl" in report([run], markdown=True)


@pytest.mark.parametrize("content", [b"\xff\xfe", NESTED, b"[]", b'{"model": 3}', b'{"oops": {}}'])
@pytest.mark.parametrize("arguments", [("train", "--resume"), ("tune", "--run")], ids=["resume", "tune"])
def test_a_run_whose_configuration_is_not_one(
    command: Command, run: Path, arguments: tuple[str, str], content: bytes
) -> None:
    (run / "config.json").write_bytes(content)
    code, _, err = command(*arguments, run)
    assert code in (1, 2) or (arguments[0] == "train" and "Its configuration is taken from" in err)
    assert "config.json" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "change",
    [
        {"measurements": None},
        {"measurements": {"matmul_flops": {"float32": {"one": 1e11}}}},
        {"measurements": {"matmul_flops": 3}},
        {"measured_at": 3},
    ],
)
def test_remembered_measurements_that_are_not_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, object]
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    good = {"matmul_flops": {"float32": {"1": 1e11}}, "memory_bandwidth": 2e10, "disk_read_rate": None}
    good |= {"fresh_memory_rate": 1e9, "busy_cores": 0.0}
    path = tmp_path / "machines" / f"{find_hardware().fingerprint}.json"
    path.parent.mkdir()
    known = {"format": FORMAT, "measured_at": "2026-01-01 10:00", "measurements": good}
    write_checked_json(path, known)
    remembered = remembered_machine()
    assert remembered is not None
    assert remembered.measurements.matmul_flops == {"float32": {1: 1e11}}
    write_checked_json(path, known | change)
    assert remembered_machine() is None


def test_a_remembered_scaling_that_is_not_one_is_forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    path = scaling_path(Config())
    path.parent.mkdir()
    for measured in (None, [3], [{"processes": 2}]):
        write_checked_json(path, {"format": SCALING_FORMAT, "measured": measured})
        assert remembered_scaling(Config()) is None
