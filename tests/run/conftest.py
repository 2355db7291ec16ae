"""A finished run that many tests resume, damage or read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.train import train
from tests.conftest import make_text
from tests.run.tiny_run import change_state, settings


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps with checkpoints at 8 (the best) and 12 (the last)."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "corpus.txt").write_text(make_text(40_000))
    train(**settings(folder / "corpus.txt", folder / "run"))
    checkpoints = folder / "run" / "checkpoints"
    shutil.copytree(checkpoints / "step-00000012", checkpoints / "step-00000008")
    change_state(checkpoints / "step-00000008", lambda state: state["position"].update(step=8))
    change_state(checkpoints / "step-00000008", lambda state: state.update(step=8))
    change_state(checkpoints / "step-00000008", lambda state: state["loader"].update(step=8))
    (checkpoints / "best").unlink()
    (checkpoints / "best").symlink_to("step-00000008")
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    shutil.copytree(finished / "run", tmp_path / "run", symlinks=True)
    return tmp_path / "run"


@pytest.fixture
def values(finished: Path, run: Path) -> dict[str, Any]:
    return settings(finished / "corpus.txt", run, **{"run.resume": True, "training.max_steps": 14})
