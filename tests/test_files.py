"""Files that cannot be written are one message that says where and what to do."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.run_folder import write_run

Command = Callable[..., tuple[int, str, str]]


def test_a_report_into_what_is_no_folder(command: Command, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    code, _, said = command("report", tmp_path / "run", "--out", tmp_path / "file" / "report.html")
    assert code == 1
    assert f"{tmp_path / 'file' / 'report.html'}: cannot be written (Not a directory)" in " ".join(said.split())


def test_a_report_into_a_read_only_folder(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulated, because root may write anywhere: on a read-only disk not even what is not there can be removed."""
    write_run(tmp_path / "run")
    opened = builtins.open

    def read_only(path: Any, mode: str = "r", *options: Any, **more: Any) -> Any:
        if set(mode) & set("wax"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, mode, *options, **more)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(builtins, "open", read_only)
    monkeypatch.setattr(Path, "unlink", refuse)
    code, _, said = command("report", tmp_path / "run")
    monkeypatch.undo()
    assert code == 1
    place = tmp_path / "run" / "report.html"
    wanted = f"error: {place}: cannot be written (Read-only file system). Please choose another place:"
    assert " ".join(said.split()).startswith(wanted)
