from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from tests.cli.terminal import output_of
from tests.conftest import make_text
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate")
    (folder / "a.txt").write_text(make_text(20_000))
    hr.train(**settings(folder / "a.txt", folder / "run", **{"training.max_steps": 2}))
    return folder / "run"


def test_every_prompt_is_continued(command: Command, run: Path) -> None:
    options = ("--max-tokens", 3, "--prompt", "the ", "--prompt", "river ")
    code, out, _ = command("generate", run, *options)
    assert code == 0
    assert [text[:4] for text in out.split("---\n")] == ["the ", "rive"]
    found = json.loads(command("generate", run, *options, "--num-samples", 2, "--json")[1].splitlines()[-1])
    assert found["prompts"] == ["the ", "river "]
    assert [sample[:4] for sample in found["samples"]] == ["the ", "the ", "rive", "rive"]
    alone = json.loads(command("generate", run, "--max-tokens", 3, "--prompt", "river ", "--json")[1].splitlines()[-1])
    assert alone["prompt"] == "river "
    assert command("generate", run, "--prompt", "x" * 300, "--max-tokens", 1)[0] == 0
    assert command("generate", run, "--seed", 2**64, "--max-tokens", 1)[0] == 2


def test_prompts_come_from_standard_input(command: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("the \n\nriver \n"))
    code, out, _ = command("generate", run, "--max-tokens", 3)
    assert code == 0
    assert [text[:4] for text in out.split("---\n")] == ["the ", "rive"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    found = json.loads(command("generate", run, "--max-tokens", 3, "--json")[1].splitlines()[-1])
    assert found["prompt"] == ""
    assert len(found["samples"]) == 1


def test_nothing_is_printed_before_everything_is_checked(command: Command, run: Path) -> None:
    for wrong in (("--prompt", "fine", "--prompt", "caf\udce9"), ("--prompt", "fine", "--temperature", -1)):
        code, out, err = command("generate", run, *wrong)
        assert (code, out) == (2, "")
        assert "error: " in err
        assert "Traceback" not in err


def test_a_conversation_in_a_terminal(run: Path) -> None:
    master, slave = pty.openpty()
    arguments = [sys.executable, "-m", "headrace", "generate", str(run), "--max-tokens", "3"]
    child = subprocess.Popen(arguments, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "dumb"})
    os.close(slave)
    shown = b""
    typed = [b"the mill\n", b"river stone\n", b"\x04"]  # each when it is asked for
    for data in output_of(master):
        shown += data
        if shown.endswith(b"> ") and typed:
            os.write(master, typed.pop(0))
    assert child.wait(timeout=60) == 0
    assert b"Ctrl-D ends" in shown
    assert shown.count(b"> ") >= 3
    assert shown.count(b"the mill") >= 2  # typed, and continued
    assert b"Traceback" not in shown


def test_generating_from_python(run: Path) -> None:
    one = hr.generate(run, "the ", max_tokens=4, seed=3)
    assert hr.generate(run, ["the ", "river "], max_tokens=4, seed=3)[0] == one
    assert hr.generate(run, max_tokens=2)
    with pytest.raises(hr.HeadraceError, match="no such run"):
        hr.generate(run.parent / "nothing")
