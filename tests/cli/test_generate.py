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


def test_the_newest_run_is_used_where_none_is_named(
    command: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--prompt", "the ", "--max-tokens", 2, "--json")
    code, out, err = command("generate", *options)
    assert (code, out) == (1, "")
    assert "runs/last: no such run here. Name a run, or make one with: headrace train" in err
    (tmp_path / "runs").mkdir()
    run.rename(tmp_path / "runs" / "one")
    try:
        (tmp_path / "runs" / "last").symlink_to("one")
        code, out, err = command("generate", *options)
        assert code == 0, err
        assert "using runs/one, the newest run" in err
        assert json.loads(out.splitlines()[-1])["run"] == "runs/one"
        code, out, err = command("export", "--gguf", "--json")
        assert code == 0, err
        assert "using runs/one, the newest run" in err
        assert json.loads(out.splitlines()[-1])["gguf"] == "runs/one/gguf/one-f32.gguf"
    finally:
        (tmp_path / "runs" / "one").rename(run)


def test_a_text_in_the_place_of_a_run_is_answered_with_the_option_for_it(command: Command) -> None:
    for text in ("Once upon a time", "ROMEO:"):
        code, out, err = command("generate", text)
        assert (code, out) == (2, "")
        assert f"{text}: no such run. A text to continue goes behind --prompt: headrace generate --prompt" in err
    code, _, err = command("generate", "runs/nothing")
    assert (code, "--prompt" in err, "runs/nothing: no such run" in err) == (1, False, True)


def test_pushing_names_what_is_made_public(command: Command) -> None:
    code, _, err = command("push", "me/name", "--license", "mit")
    assert code == 2
    assert "push: name the run and the repository, such as: headrace push runs/last OWNER/NAME" in err


def test_generating_from_python(run: Path) -> None:
    one = hr.generate(run, "the ", max_tokens=4, seed=3)
    assert hr.generate(run, ["the ", "river "], max_tokens=4, seed=3)[0] == one
    assert hr.generate(run, max_tokens=2)
    with pytest.raises(hr.HeadraceError, match="no such run"):
        hr.generate(run.parent / "nothing")
