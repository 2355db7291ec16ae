"""The outputs that pages show still have the form of what commands print: the same lines, whatever their figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from headrace.cli import display
from headrace.quick import QUICK
from tests.conftest import make_text
from tests.docs.pages import ROOT, blocks

Command = Callable[..., tuple[int, str, str]]
OUTPUTS = ROOT / "docs" / "reference" / "outputs"
IN_ORDER = ("prepare", "inspect", "config", "train", "report", "plan")
"""Recorded commands that take a moment; each may need what those before it wrote."""
BY_CHANCE = ("bound by", "assumed", "chosen", "warning", "noticed", "sample", "loading", "Rehearsing", "includes")
"""Beginnings of lines that a machine, a text or a longer run has and another has not."""
KEY = re.compile(r"(\w+)=")
LABEL = re.compile(r"[A-Za-z][A-Za-z -]*?(?=:|  |$)")


def form_of(lines: Iterable[str]) -> set[str]:
    """Return what makes out the form of an output: the names of its values, and the labels that its lines begin with.

    >>> sorted(form_of(["  memory: 3 MiB", "step=1/3 loss=7.5", "12 tokens", "warning: slow"]))
    ['loss=', 'memory', 'step=']
    """
    form = set()
    for line in lines:
        label = LABEL.match(line.strip())
        if line.strip().startswith(BY_CHANCE):
            continue
        if KEY.match(line):
            form |= {f"{key}=" for key in KEY.findall(line)}
        elif label:
            form.add(label[0])
    return form


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(QUICK, "1")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "user-cache"))
    monkeypatch.setattr(display.out, "_width", 100)  # as tools/record_outputs.py has it
    (tmp_path / "shakespeare.txt").write_text(make_text(40_000))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_recorded_outputs_have_the_form_of_what_is_printed(command: Command) -> None:
    for name in IN_ORDER:
        typed, *recorded = (OUTPUTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        code, out, err = command(*typed.removeprefix("$ headrace ").split())
        assert code == 0, err
        printed = (err + out).splitlines()
        gone = form_of(recorded) - form_of(printed)
        assert not gone, f"{name}: no longer printed; run: python tools/record_outputs.py TEXT {name}"
        new = form_of(printed) - form_of(recorded) if "…" not in recorded else set()
        assert not new, f"{name}: not in what was recorded; run: python tools/record_outputs.py TEXT {name}"


@pytest.mark.usefixtures("folder")
def test_the_quick_start_shows_what_a_run_prints(command: Command) -> None:
    code, out, err = command("train", "shakespeare.txt", "data.tokenizer=byte", "--out", "run")
    assert code == 0, err
    shown = [block.text for block in blocks(ROOT / "docs" / "quickstart.md") if block.language == "text"]
    assert shown
    assert not form_of("".join(shown).splitlines()) - form_of((err + out).splitlines())
