"""The code on documentation pages: which blocks there are, and which of them can be run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "quickstart.md",
    ROOT / "docs" / "coming-from.md",
    ROOT / "docs" / "data.md",
    ROOT / "docs" / "training.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
_BLOCK = re.compile(r"(<!-- not run: [^\n]+ -->\n)?```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    title: str
    is_run: bool
    """Whether it is executed. After a comment "not run: WHY", only its commands and keys are checked."""

    @property
    def commands(self) -> list[list[str]]:
        """The command lines of a block, each as a list of words, comments left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(language, text, title, not mark) for mark, language, title, text in found]


def shown_commands(page: Path) -> list[list[str]]:
    """Return the headrace command lines of indented blocks, which show what exists and are not executed."""
    lines = re.findall(r"^    (headrace [a-z].*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]
