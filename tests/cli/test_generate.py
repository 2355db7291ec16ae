from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import headrace as hr
from tests.conftest import make_text
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]


def test_every_prompt_is_continued(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    run = tmp_path / "run"
    hr.train(**settings(tmp_path / "a.txt", run, **{"training.max_steps": 2}))
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
