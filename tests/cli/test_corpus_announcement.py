"""`train` says what it trains on before it starts, and everything that is odd about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import display
from tests.conftest import make_text

Command = Callable[..., tuple[int, str, str]]
TINY = (
    "model.d_model=16", "model.num_heads=2", "model.num_layers=1", "model.d_ff=32", "training.max_length=16",
    "training.batch_size=2", "training.micro_batch_size=2", "training.threads=1", "training.precision=float32",
    "data.tokenizer=byte",
)  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "user-cache"))
    root = tmp_path / "corpus"
    root.mkdir()
    (root / "a.txt").write_text(make_text(3000))
    (root / "b.md").write_bytes(b"text with \xff a bad byte and \0 a zero one\n" * 3)
    (root / "empty.txt").touch()
    (root / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return root


@pytest.mark.parametrize("is_terminal", [False, True])
def test_train_says_what_it_trains_on(
    corpus: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(display.err, "_force_terminal", is_terminal)
    monkeypatch.setattr(display.err, "no_color", True)
    code, out, err = command("train", corpus, *TINY, "training.max_steps=2", "--out", tmp_path / "run", "--json")
    assert code == 0, err
    said = " ".join(err.replace("\x1b[1m", "").replace("\x1b[0m", "").split())  # a terminal gets wrapped lines
    assert "corpus: 2 files" in said
    assert "tokenizer byte of 257 tokens" in said
    assert "3 invalid UTF-8 sequences" in said
    assert "3 NUL bytes" in said
    assert "1 empty file, left out" in said
    assert "1 file with the suffix .png, left out" in said
    assert "tokens are very little text" in said
    facts = json.loads(out.splitlines()[-1])["corpus"]
    assert facts["skipped"] == {"empty file(s)": 1, "file(s) with the suffix .png": 1}
    assert (facts["files"], facts["documents"]) == (2, 2)
    assert facts["tokens"] == facts["bytes"] + 3 * 2 + 2  # U+FFFD for a bad byte takes two bytes more
    assert facts["epochs"] == pytest.approx(2 * 2 * 16 / (0.95 * facts["tokens"]), abs=0.001)
    assert json.loads((tmp_path / "run" / "corpus.json").read_text())["skipped"] == facts["skipped"]


def test_files_of_many_kinds_left_out_are_one_line(corpus: Path, tmp_path: Path, command: Command) -> None:
    for number, suffix in enumerate((".so", ".gif", ".ico", ".bat", ".whl", ".def"), 1):
        for copy in range(number):
            (corpus / f"{copy}{suffix}").write_bytes(b"?")
    code, out, _ = command("prepare", corpus, "--tokenizer", "byte", "--out", tmp_path / "cache")
    assert code == 0
    assert "22 files with 7 other suffixes, left out (.def 6, .whl 5, .bat 4, .ico 3, .gif 2, …)" in out
    assert out.count("left out") == 2  # and the empty file


def test_many_epochs_are_one_line_of_warning(corpus: Path, tmp_path: Path, command: Command) -> None:
    many = [*TINY, "training.max_steps=90"]
    code, _, err = command("train", corpus / "b.md", *many, "training.dropout=0", "--out", tmp_path / "run")
    assert code == 0, err
    assert err.count("warning:") == 1
    assert "the model will know them by heart" in err
    _, _, err = command("train", corpus / "b.md", *many, "--out", tmp_path / "other")
    assert "the model will know them by heart" not in err, "the recipe for many epochs holds against that"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no names that are not UTF-8")
def test_train_on_a_path_that_is_not_utf8(corpus: Path, tmp_path: Path, command: Command) -> None:
    odd = corpus.rename(str(tmp_path / "caf\udce9"))
    code, out, err = command("train", odd, *TINY, "training.max_steps=2", "--out", tmp_path / "r\udce9", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["steps"] == 2


def test_train_twice_in_a_folder_does_not_train_on_the_first_run(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(corpus)
    tokens = []
    for _ in range(2):
        code, out, err = command("train", ".", *TINY, "training.max_steps=2", "data.cache_dir=cache", "--json",
                                 "--out", f"runs/{len(tokens)}")  # fmt: skip
        assert code == 0, err
        tokens.append(json.loads(out.splitlines()[-1])["corpus"]["tokens"])
    assert tokens[0] == tokens[1]
    assert "1 folder with a run directory of headrace, left out" in err
