from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli import display
from headrace.sizes import parse_size
from tests.cli.terminal import output_of
from tests.conftest import make_text
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]


def test_prepare_and_inspect_as_json(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one line\nanother line\n")
    code, out, _ = command(
        "prepare",
        tmp_path / "a.txt",
        "--document",
        "line",
        "--tokenizer",
        "byte",
        "--out",
        tmp_path / "cache",
        "--json",
    )
    assert code == 0
    prepared = json.loads(out.splitlines()[-1])
    assert prepared["documents"] == 2
    assert prepared["tokens"] == 8 + 12 + 2
    assert prepared["build"]["tokenised_files"] == 1
    code, out, _ = command("inspect", tmp_path / "cache", "--json", "--sequence-length", "4", "--packing", "document")
    chunking = json.loads(out.splitlines()[-1])["chunking"]
    assert chunking["documents_split"] == 2
    assert chunking["sequences_after"] == 5
    assert (chunking["shortest"], chunking["longest"], chunking["mean"]) == (9, 13, 11.0)
    code, out, _ = command("inspect", tmp_path / "cache", "--verify", "--json")
    assert json.loads(out.splitlines()[-1])["verified"] is True


def test_inspect_a_step(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(2000))
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    options = ("--batch-size", 2, "--sequence-length", 16, "--seed", 7)
    code, out, _ = command("inspect", cache.path, "--step", 3, *options, "--json")
    assert code == 0
    rows = json.loads(out.splitlines()[-1])["rows"]
    with hr.Loader(cache, 2, 16, seed=7) as loader:
        loader.seek(3)
        batch = next(loader)
    assert len(rows) == 2
    assert rows[0]["spans"][0]["file"] == str(tmp_path / "a.txt")
    text = "".join(span["text"] for span in rows[0]["spans"])
    assert text.startswith(cache.tokenizer.decode(batch.inputs[0])[:8])
    assert str(tmp_path / "a.txt") in out


def test_inspect_a_run(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(make_text(20_000))
    values = {"training.max_steps": 2, "training.seed": 7, "training.short_windows": 16}
    hr.train(**settings(Path("a.txt"), Path("runs/one"), **values))
    code, out, err = command("inspect", "--step", 1, "--json")
    assert code == 0, err
    assert "spread over this update and its neighbours" in out
    assert "using runs/one, the newest run" in err
    rows = json.loads(out.splitlines()[-1])["rows"]
    with hr.Loader("cache", 4, 32, seed=7, split="train", validation_fraction=0.05) as loader:
        loader.seek(1)
        batch = next(loader)
        first = loader.cache.tokenizer.decode(batch.inputs[0])
    assert len(rows) == 4
    assert "".join(span["text"] for span in rows[0]["spans"]).startswith(first[:8])
    found = json.loads(command("inspect", "runs/one", "--json")[1].splitlines()[-1])
    assert (found["cache"], found["chunking"]["sequence_length"]) == ("cache", 32)
    assert command("inspect", "runs/one", "--verify")[0] == 0
    Path("a.txt").write_text(make_text(10_000))
    hr.prepare("a.txt", tokenizer="byte", out="cache")
    code, _, err = command("inspect", "runs/one")
    assert (code, "cache: holds other text now" in err) == (1, True)
    Path("runs/one/corpus.json").unlink()
    code, _, err = command("inspect", "runs/one")
    assert (code, "does not say where its tokens are" in err) == (1, True)


def test_several_sources_are_listed(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display.out, "_width", 300)  # of names that are longer than a row, the end is not shown
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    sources = [{"path": str(tmp_path / name)} for name in ("a.txt", "b.txt")]
    hr.prepare(sources, tokenizer="byte", out=tmp_path / "c")
    _, out, _ = command("inspect", tmp_path / "c")
    assert "a.txt" in out
    assert "b.txt" in out


def test_zero_download_default(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("prepare", "--tokenizer", "byte", "--out", tmp_path / "cache", "--json")
    assert code == 0
    assert "standard library" in json.loads(out.splitlines()[-1])["sources"][0]["name"]


def test_help_and_version(command: Command) -> None:
    for arguments in (("--help",), ("prepare", "--help"), ("inspect", "--help")):
        code, out, _ = command(*arguments)
        assert code == 0
        assert "Usage: headrace" in out
    assert "Exit codes" in command("--help")[1]
    assert command("--version")[1].startswith("headrace 0.")


@pytest.mark.parametrize(
    ("text", "size"),
    [("256MiB", 256 << 20), ("850MB", 850_000_000), ("1.5G", 3 << 29), ("4096", 4096), ("2 KiB", 2048)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def start(tmp_path: Path, **options: object) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "headrace", "prepare", str(tmp_path / "a.txt"), "--tokenizer", "bpe:2000"]
    return subprocess.Popen([*arguments, "--out", str(tmp_path / "cache")], text=True, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_saving(tmp_path: Path, kind: signal.Signals) -> None:
    with open(tmp_path / "a.txt", "w") as file:
        text = make_text(1_000_000)
        for _ in range(150):
            file.write(text)
    child = start(tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not list((tmp_path / "cache").glob("shards/*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(kind)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 3
    assert "stopped. Finished work is kept" in err
    assert "Traceback" not in err
    assert not list((tmp_path / "cache").glob("tmp/*"))
    child = start(tmp_path, stdout=subprocess.PIPE)
    assert "tokenised" in child.communicate(timeout=60)[0]
    assert child.returncode == 0


def test_a_terminal_gets_a_progress_bar(tmp_path: Path) -> None:
    with open(tmp_path / "a.txt", "w") as file:
        text = make_text(1_000_000)
        for _ in range(60):
            file.write(text)
    master, slave = pty.openpty()
    child = start(tmp_path, stdout=slave, stderr=slave, env={**os.environ, "COLUMNS": "120", "TERM": "xterm"})
    os.close(slave)
    shown = b"".join(output_of(master))
    assert child.wait(timeout=60) == 0
    assert b"Tokenising" in shown
    assert b"MB/s" in shown
    assert b"tokens" in shown
