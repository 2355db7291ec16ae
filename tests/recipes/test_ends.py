"""Ends that must not lose work: outputs that go away, disks and limits that are full, signals at any time."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.recipes.config import Layers
from headrace.recipes.folder import MetricsFile
from headrace.recipes.pretrain import Pretraining
from tests.conftest import make_text
from tests.recipes import tiny_run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text(make_text(20_000))
    return tmp_path / "corpus.txt"


def pretraining(corpus: Path, out: Path, **changes: Any) -> Pretraining:
    layers = Layers()
    layers.add(tiny_run.settings(corpus, out, **changes), "the test")
    return Pretraining(layers.build())


def headrace(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, text=True, timeout=120, check=False, **options)


def train_arguments(corpus: Path, out: Path, **changes: Any) -> list[str]:
    values = tiny_run.settings(corpus, out, **changes)
    return ["train", *(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in values.items())]


def close_outputs() -> None:
    os.close(1)
    os.close(2)


@pytest.mark.parametrize("how", ["closed", "full"])
def test_training_does_not_need_anybody_to_tell(corpus: Path, tmp_path: Path, how: str) -> None:
    arguments = train_arguments(corpus, tmp_path / "run")
    if how == "closed":
        done = headrace(*arguments, "--json", preexec_fn=close_outputs)
        assert done.returncode == 0
    else:
        with open("/dev/full", "w") as full:
            done = headrace(*arguments, "--json", stdout=full, stderr=full)
        assert done.returncode == 1, "what was asked for on stdout is not there"
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 12
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 12
    assert (tmp_path / "run" / "checkpoints" / "last" / "state.json").exists()


def test_full_output_is_one_message() -> None:
    with open("/dev/full", "w") as full:
        done = headrace("config", "--preset", "demo", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == (
        "error: standard output: cannot be written (No space left on device). Files are not affected.\n"
    )


def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = headrace("config", "--preset", "demo", stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_shows_what_it_can() -> None:
    code = """
import sys
from headrace.cli import display
from headrace.cli.streams import steady_streams
steady_streams()
display.out.print("loss 5.1 → 4.2, é, \\udc80")
display.err.print("▁▂▃")
sys.stdout.write("水車\\n")
"""
    environment = {**os.environ, "PYTHONIOENCODING": "iso-8859-1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("iso-8859-1") == "loss 5.1 ? 4.2, é, ?\n??\n"
    assert done.stderr == b"???\n"


def test_metrics_hold_whole_lines_only(tmp_path: Path) -> None:
    """A limit in the middle of a line, as on a disk that is full: Python has SIGXFSZ ignored, so this is an error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MetricsFile(tmp_path / "metrics.jsonl") as metrics:
        metrics.write("a" * 50 + "\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (80, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                metrics.write("b" * 50 + "\n")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        metrics.write("c\n")
    assert (tmp_path / "metrics.jsonl").read_text() == "a" * 50 + "\nc\n"


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_records_that_cannot_be_written_do_not_end_training(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretraining(corpus, tmp_path / "run") as training:
        monkeypatch.setattr(MetricsFile, "write", no_space)
        monkeypatch.setattr(training.folder, "add_sample", no_space)
        assert len(list(training.steps())) == 12
    said = [
        f"{tmp_path / 'run' / name}: cannot be written (No space left on device)"
        for name in ("samples.txt", "metrics.jsonl")
    ]
    assert [warning.partition(". Training goes on")[0] for warning in training.run.warnings] == said
    assert (tmp_path / "run" / "checkpoints" / "last" / "state.json").exists()


def test_a_removed_tensorboard_folder_does_not_end_training(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pretraining(corpus, tmp_path / "run", **{"run.tensorboard": True}) as training:
        for info in training.steps():
            if info.step == 2:
                shutil.rmtree(tmp_path / "run" / "tensorboard")
    assert training.run.steps == 12
    assert len(training.run.warnings) == 1
    assert "tensorboard: cannot be written (somebody has removed it)" in training.run.warnings[0]


def test_a_limit_on_file_sizes_is_one_message(corpus: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    done = headrace(*train_arguments(corpus, tmp_path / "run"), stderr=subprocess.PIPE, preexec_fn=limit)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    assert "would be larger than a file may be here. Raise the limit (`ulimit -f unlimited`)." in said
    assert not list((tmp_path / "run" / "checkpoints").glob("*.tmp"))


def test_the_corpus_is_described_after_the_checkpoint_is_safe(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise HeadraceError("corpus.json: the disk is full")

    with pretraining(corpus, tmp_path / "run") as training:
        monkeypatch.setattr(training, "_describe_corpus", fails)
        with pytest.raises(HeadraceError, match="the disk is full"):
            list(training.steps())
    assert (tmp_path / "run" / "checkpoints" / "last" / "state.json").exists()
