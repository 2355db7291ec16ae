"""Every command and Python snippet of README, quick start and how-to pages, in order, in a fresh folder per page.

HEADRACE_QUICK, which the pages mention, makes each run 3 small steps; the networks are the ones of the pages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from headrace.cli.main import COMMANDS
from headrace.quick import QUICK
from headrace.run.config import ALIASES, Layers, all_keys
from tests.conftest import make_text
from tests.docs.pages import PAGES, ROOT, blocks, shown_commands

Command = Callable[..., tuple[int, str, str]]
OTHER_PROGRAMS = {"docker", "lm_eval", "pip", "uv", "pipx", "make", "git", "cd", "export"} | {
    "accelerate", "python", "hf", "llama-cli", "ollama", "tensorboard", "trackio",
}  # fmt: skip
"""Programs that pages mention and the suite does not start: they install, build, or take minutes."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages speak of, and HEADRACE_QUICK set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(QUICK, "1")
    (tmp_path / "corpus").mkdir()
    for number in range(3):
        (tmp_path / "corpus" / f"{number}.txt").write_text(make_text(40_000, seed=number))
    for number, name in enumerate(("shakespeare.txt", "poems.txt", "held-out.txt")):
        (tmp_path / name).write_text(make_text(40_000, seed=10 + number))
    lines = [json.dumps({"content": make_text(200, seed=number)}) for number in range(100)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    rows = [f'{number},"{make_text(200, seed=number)}"' for number in range(100)]
    (tmp_path / "reviews.csv").write_text("\n".join(["stars,review", *rows]))
    for name in ("wiki", "books"):
        (tmp_path / name).mkdir()
    with pyarrow.output_stream(tmp_path / "wiki" / "a.jsonl.zst", compression="zstd") as packed:
        packed.write("\n".join(lines).encode())
    (tmp_path / "books" / "a.txt").write_text(make_text(40_000, seed=20))
    (tmp_path / "corpus.txt").write_text(make_text(40_000, seed=21))
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_page_works_as_it_is_written(page: Path, command: Command) -> None:
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks(page)):
        if block.title:
            Path(block.title).write_text(block.text)
        if not block.is_run:
            continue
        if block.language == "python":
            exec(compile(block.text, f"{page.name}, block {number}", "exec"), names)
        for words in block.commands if block.language == "sh" else []:
            if words[0] == "headrace":
                code, _, err = (run_apart if needs_own_process(words) else command)(*words[1:])
                assert code == 0, f"{' '.join(words)}: {err}"


def needs_own_process(words: list[str]) -> bool:
    """Check for a memory budget, which is that of a whole process: this one holds what other tests have left."""
    return any(word.startswith("training.memory_budget") for word in words)


def run_apart(*words: str) -> tuple[int, str, str]:
    """Run a command in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "headrace", *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


ALL_PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_keys_exist(page: Path) -> None:
    fenced = [words for block in blocks(page) if block.language == "sh" for words in block.commands]
    for words in [*fenced, *shown_commands(page)]:
        assert words[0] in {"headrace", *OTHER_PROGRAMS}, words
        if words[0] == "headrace":
            assert words[1] in COMMANDS, words
        keys = [word.partition("=")[0] for word in words if "=" in word]
        assert {key for key in keys if "." in key} <= {*all_keys(), *ALIASES}, words


def test_quick_is_mentioned_where_it_helps() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "quickstart.md", ROOT / "docs" / "reference" / "configuration.md"):
        assert QUICK in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("folder")
def test_the_notebook_runs() -> None:
    notebook = json.loads((ROOT / "examples" / "first_model.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        exec(compile("".join(cell["source"]), f"first_model.ipynb, cell {number}", "exec"), names)
    assert names["result"]["steps"] == 3
    assert names["batch"].inputs.shape == (4, 64)


def test_quick_shortens_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = Layers()
    layers.add({"training.max_steps": 2000, "training.batch_size": 2}, "the test")
    assert layers.build().training.max_steps == 2000
    monkeypatch.setenv(QUICK, "1")
    short = layers.build().training
    assert (short.max_steps, short.batch_size, short.max_length) == (3, 2, 64)
    assert Layers().build().training.max_steps == 3
