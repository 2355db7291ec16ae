"""Trackers with their real packages, offline: what was told is read back with the tracker's own reader."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.run.trackers.tracker import TrackedRun
from tests.conftest import make_text
from tests.run.tiny_run import settings

LEVELDB_BLOCK = 32768

pytestmark = pytest.mark.filterwarnings("ignore")  # of the neighbours


def train(tmp_path: Path, tracker: str, **changes: Any) -> hr.Run:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    values = {"run.trackers": [tracker], "training.max_steps": 4, "training.evaluate_every": 2, **changes}
    return hr.train(**settings(tmp_path / "a.txt", tmp_path / "run", **values))


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'headrace[dev]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(tmp_path, "tensorboard")
    assert run.warnings == []
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses(run.folder))
    assert len(events.Scalars("validation_loss")) == 2
    assert events.Tensors("sample/text_summary")[-1].tensor_proto.string_val[0].decode() == run.last_sample
    train(tmp_path, "tensorboard", **{"run.resume": True, "training.max_steps": 6})
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses(run.folder))


def test_tensorboard_forgets_the_steps_that_are_done_again(tmp_path: Path) -> None:
    """As after a kill: the run goes on from its last checkpoint, and trackers were told of later steps already."""
    pytest.importorskip("tensorboard", reason="pip install 'headrace[dev]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from headrace.run.trackers.tensorboard import TensorBoard

    for before, steps in ((0, range(1, 6)), (3, range(4, 7))):
        tracker = TensorBoard(tmp_path)
        tracker.begin(TrackedRun(tmp_path, {}, "identity", before))
        for step in steps:
            tracker.step(step, {"loss": 10.0 * before + step})
        tracker.end()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == [1, 2, 3, 34, 35, 36]


def test_trackio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trackio", reason="pip install 'headrace[dev]'")
    from trackio.sqlite_storage import SQLiteStorage

    run = train(tmp_path, "trackio")
    assert run.warnings == []
    assert capsys.readouterr().out == ""
    train(tmp_path, "trackio", **{"run.resume": True, "training.max_steps": 6})
    (name,) = [name for name in SQLiteStorage.get_runs("headrace") if name.startswith("run-")]
    rows = [row for row in SQLiteStorage.get_logs("headrace", name) if "loss" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in rows] == pytest.approx(losses(run.folder))


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb", reason="pip install 'headrace[dev]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = train(tmp_path, "wandb")
    assert run.warnings == []
    assert capfd.readouterr().out == ""
    train(tmp_path, "wandb", **{"run.resume": True, "training.max_steps": 6})
    # Each session leaves a folder; `wandb sync` puts those of one id together.
    files = sorted((run.folder / "wandb").glob("offline-run-*/*.wandb"))
    begun = [next(record.run for record in wandb_records(file) if record.run.run_id) for file in files]
    identity = (run.folder / "tracker-id").read_text()
    assert [(told.run_id, told.project, told.display_name) for told in begun] == [(identity, "headrace", "run")] * 2
    rows = [row for file in files for row in wandb_rows(file)]
    assert [row["_step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in rows] == pytest.approx(losses(run.folder))


def wandb_rows(file: Path) -> list[dict[str, Any]]:
    """Return the metrics of the steps of an offline run, by name."""
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(file)
    ]
    return [row for row in rows if "loss" in row]


def wandb_records(file: Path) -> list[Any]:
    """Read an offline run, which is a LevelDB log of wandb's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole, records = file.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        length, kind = struct.unpack_from("<HB", data, place + 4)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if LEVELDB_BLOCK - place % LEVELDB_BLOCK < 7:  # what is left of a block is empty
            place += LEVELDB_BLOCK - place % LEVELDB_BLOCK
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(whole))
            whole = b""
    return records


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow brings 800 MB: pip install 'headrace[mlflow]'")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = train(tmp_path, "mlflow")
    assert run.warnings == []
    train(tmp_path, "mlflow", **{"run.resume": True, "training.max_steps": 6})
    client = mlflow.MlflowClient(f"sqlite:///{run.folder.resolve() / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("headrace").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["training.max_steps"] == "4"
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [metric.value for metric in history] == pytest.approx(losses(run.folder))
    assert client.list_artifacts(found.info.run_id, "samples")


def test_a_dead_wandb_server_does_not_stop_training(tmp_path: Path) -> None:
    """In a process of its own, because the package keeps one connection for a whole process."""
    pytest.importorskip("wandb", reason="pip install 'headrace[dev]'")
    (tmp_path / "a.txt").write_text(make_text(20_000))
    values = settings(tmp_path / "a.txt", tmp_path / "run", **{"run.trackers": ["wandb"], "training.max_steps": 3})
    keys = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    dead = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path)}
    impatient = "from headrace.run.trackers.beside import TrackerThread as t; t.__init__.__defaults__ = (10, 0.5)"
    script = f"{impatient}; from headrace.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "train", *keys, "--json"],
        env={**os.environ, **dead}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] == 3
    assert len(result["warnings"]) == 1
    assert "wandb" in result["warnings"][0]
