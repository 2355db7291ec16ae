"""The result of a run as people and programs read it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from headrace.cli.result import plain_lines, show_result
from headrace.generation.prompts import BETWEEN_SAMPLES
from headrace.run.config import Config
from headrace.run.records import Run
from tests.cli.terminal import Attach

CONFIG = Config.model_validate({"training": {"max_steps": 100}})


def a_run(folder: Path, **changes: object) -> Run:
    values = {
        "folder": folder, "steps": 100, "tokens": 51_200, "train_seconds": 61.0, "first_loss": 8.0,
        "smoothed_loss": 4.0, "train_loss": 4.5, "validation_loss": 4.2, "validation_bits_per_byte": 1.9,
        "validation_tokens": 10_240, "elapsed_seconds": 75.0, "user_seconds": 110.0, "system_seconds": 2.5,
        "seconds": {"forward": 20.0, "backward": 40.0}, "prompts": ["It's", "ROMEO:"],
        "first_sample": f"It's x\x1b[2Jy{BETWEEN_SAMPLES}ROMEO:zzz",
        "last_sample": f"It's a\nline{BETWEEN_SAMPLES}ROMEO:\nBut soft",
    }  # fmt: skip
    return Run.model_validate({**values, **changes})


def test_a_terminal_gets_a_page(tmp_path: Path, terminal_of: Attach) -> None:
    terminal = terminal_of(80, 50)
    (tmp_path / "tune.json").write_text('{"findings": [], "best_batch_size": 48}')
    show_result(a_run(tmp_path), CONFIG)
    rows = terminal.all_rows()
    text = "\n".join(rows)
    assert "8.0000 → 4.0000, 50% lower" in text
    assert "elapsed     1m 15s (user 1m 50s, system 2.5s" in text.replace("elapsed       ", "elapsed     ")
    assert "48 sequences" in text
    assert "    It's x\ufffd[2Jy" in rows, "text, and nothing that a terminal obeys"
    assert rows[rows.index("    But soft") - 1 : rows.index("    But soft") + 1] == ["    ROMEO:", "    But soft"]
    assert "sample 2 of 2" in rows


@pytest.mark.parametrize("name", ["plain", "it's a run"])
def test_elsewhere_the_same_facts_are_key_and_value(tmp_path: Path, name: str) -> None:
    lines = plain_lines(a_run(tmp_path / name), CONFIG)
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith(("next=", " ")))
    assert values["first_loss"] == "8.0000"
    assert values["smoothed_loss"] == "4.0000"
    assert values["user_seconds"] == "110.0"
    assert values["forward_percent"] == "33.3"
    assert "    But soft" in lines
    commands = [shlex.split(line.removeprefix("next=")) for line in lines if line.startswith("next=")]
    folder = str(tmp_path / name)
    assert commands == [
        ["headrace", "generate", folder, "--prompt", "It's"],
        ["headrace", "report", folder],
        ["headrace", "train", "--resume", folder, "training.max_steps=200"],
    ]


def test_what_lets_a_run_go_on(tmp_path: Path) -> None:
    def last(config: dict[str, object], **changes: object) -> str:
        return plain_lines(a_run(tmp_path, **changes), Config.model_validate({"training": config}))[-1].split()[-1]

    assert last({"max_minutes": 1.5}) == "training.max_minutes=3"
    assert last({"max_minutes": 1.5, "max_steps": 1000}) == "training.max_minutes=3"
    assert last({"num_epochs": 0.5}) == "training.num_epochs=1"
    assert last({"max_minutes": 5, "num_epochs": 13}) == "training.num_epochs=26", "more minutes alone change nothing"
    assert last({"max_steps": 1000}, was_stopped=True) == str(tmp_path)
