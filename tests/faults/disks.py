"""Disks and terminals that take no more: one message, never a traceback, and the last good checkpoint stays."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.bench import NotHereError, Workbench, fault


@contextmanager
def _small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk of this size, if this user may mount one."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True, text=True
    )
    if mounted.returncode:
        raise NotHereError(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@fault("disk", "the disk fills up while training: one message, exit code 1, the last good checkpoint resumes")
def full_disk_in_training(bench: Workbench) -> None:
    with _small_disk(bench.folder, "24m") as disk:
        arguments = bench.training("disk/run", training__max_steps=3000, run__out=disk / "run")
        process = bench.start(*arguments)
        bench.wait_for_step(12, process, "disk/run")
        ballast = disk / "ballast"
        with open(ballast, "wb", buffering=0) as file:
            try:
                while file.write(b"\0" * 4096):
                    pass
            except OSError:
                pass
        bench.end(process).expect(1, "disk")
        ballast.unlink()
        bench.run(
            "train", "--resume", disk / "run", "training.max_steps=3001", "training.max_minutes=0.05", "--json"
        ).expect(0)


@fault("disk", "the disk fills up while tokenising: one message, exit code 1; with space again it goes on")
def full_disk_in_prepare(bench: Workbench) -> None:
    with _small_disk(bench.folder, "1m") as disk:
        text = bench.folder / "text.txt"
        text.write_text(bench.corpus.read_text(encoding="utf-8") * 40, encoding="utf-8")
        command = ("prepare", text, "--tokenizer", "byte", "--out", disk / "cache")
        bench.run(*command).expect(1, "disk is full")
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        bench.run(*command).expect(0)


@fault("disk", "a limit on file size (RLIMIT_FSIZE) while training: one message, exit code 1")
def limited_file_size(bench: Workbench) -> None:
    bench.run("prepare", bench.corpus, "--tokenizer", "byte", "--out", bench.folder / "cache").expect(0)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    outcome = bench.run(*bench.training(data__cache_dir=bench.folder / "cache"), preexec_fn=limit)
    assert outcome.code == 1, f"exit code {outcome.code}: {outcome.stderr[-300:]}"
    outcome.expect(1)


@fault("disk", "stdout is /dev/full: training goes on and its result is saved")
def full_terminal(bench: Workbench) -> None:
    with open("/dev/full", "w") as full:
        outcome = bench.run(*bench.training(), stdout=full)
    assert "Traceback" not in outcome.stderr, outcome.stderr[-300:]
    assert (bench.folder / "run" / "summary.json").exists(), "no result was saved"


@fault("disk", "the reader of stdout goes away: training goes on and its result is saved")
def closed_terminal(bench: Workbench) -> None:
    process = bench.start(*bench.training())
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    outcome = bench.end(process)
    assert "Traceback" not in outcome.stderr, outcome.stderr[-300:]
    assert (bench.folder / "run" / "summary.json").exists(), "no result was saved"


@fault("disk", "the tensorboard/ folder is removed while training: training goes on")
def removed_tensorboard(bench: Workbench) -> None:
    process = bench.start(*bench.training(run__tensorboard="true", training__max_steps=400))
    bench.wait_for_step(5, process)
    shutil.rmtree(bench.folder / "run" / "tensorboard")
    bench.end(process).expect(0)


@fault("disk", "the run directory is removed while training: one message, no traceback")
def removed_run_directory(bench: Workbench) -> None:
    process = bench.start(*bench.training(training__max_steps=400))
    bench.wait_for_step(5, process)
    shutil.rmtree(bench.folder / "run", ignore_errors=True)
    outcome = bench.end(process)
    assert outcome.code != -signal.SIGSEGV and "Traceback" not in outcome.stderr, outcome.stderr[-300:]
