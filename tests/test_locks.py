"""One writer at a time, whatever clocks, host names and files say, and for no longer than it lives."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.errors import TrainingError
from headrace.locks import Scratch, is_held, sweep, take_lock
from headrace.run.directory import RunFolder


def holder(code: str) -> subprocess.Popen[str]:
    """A process that runs the code, says so, and then does nothing until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nprint('here', flush=True)\nimport time; time.sleep(600)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def test_only_one_of_many_starts_gets_a_run_directory(tmp_path: Path) -> None:
    together = threading.Barrier(8)
    outcomes: list[str] = []

    def begin() -> None:
        with ExitStack() as stack:
            together.wait()
            try:
                stack.enter_context(RunFolder(str(tmp_path / "run")).lock())
                outcomes.append("trains")
            except TrainingError as problem:
                outcomes.append(str(problem))
            together.wait()

    for _ in range(2):
        threads = [threading.Thread(target=begin) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    refusal = f"{tmp_path / 'run'}: another process is training here. Wait until it ends, or choose another --out."
    assert sorted(outcomes) == sorted(["trains"] * 2 + [refusal] * 14)


def test_a_run_directory_is_free_when_its_process_is_killed(tmp_path: Path) -> None:
    run = RunFolder(str(tmp_path / "run"))
    code = "from headrace.run.directory import RunFolder\n"
    with holder(f"{code}lock = RunFolder({str(run.path)!r}).lock(); lock.__enter__()") as other:
        assert run.is_in_use
        with pytest.raises(TrainingError, match="another process is training here"), run.lock():
            pass
        other.kill()
        other.wait()
    assert not run.is_in_use
    (run.path / "config.json").write_text("{}")
    (run.path / "summary.json.0123.tmp").write_text("half of it")
    with run.lock():
        assert not list(run.path.glob("*.tmp"))


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"elsewhere+1+1.00~1", b"localhost+1+99999999999.00~1"], ids=repr
)
def test_what_a_lock_file_says_does_not_matter(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.lock").write_bytes(content)
    with RunFolder(str(tmp_path)).lock():
        assert is_held(tmp_path / "run.lock")


def test_scratch_is_swept_when_its_maker_is_dead(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from headrace.locks import Scratch; scratch = Scratch(Path({str(tmp_path)!r}))\n"
    with holder(f"{code}(scratch.path / 'half').write_text('x')") as other:
        sweep(tmp_path)
        (half,) = tmp_path.glob("*/half")
        other.kill()
        other.wait()
    with Scratch(tmp_path) as mine:
        sweep(tmp_path)
        assert not half.exists()
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [mine.name]
    assert not list(tmp_path.iterdir())


def test_a_lock_that_was_swept_before_it_was_taken_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swept_once(path: Path, *options: float) -> object:
        lock = take_lock(path, *options)
        if len(tried) < 1:
            path.unlink()
        tried.append(path)
        return lock

    tried: list[Path] = []
    monkeypatch.setattr("headrace.locks.take_lock", swept_once)
    with Scratch(tmp_path) as folder:
        assert [path.stem for path in tried][1:] == [folder.name]
