"""Fixtures: the laboratory importable, a tiny corpus, a tiny table, and training in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import make_text

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

if TYPE_CHECKING:
    from lab.corpora import Library
    from lab.sweep import Sweep

TINY = (
    "d_model=16 num_layers=1 num_heads=2 tokenizer=byte batch_size=4 max_length=32"
    " engine=torch micro_batch_size=4 precision=float32 matmul=default attention=fused threads=1"
)
TABLE: dict[str, Any] = {
    "base": TINY,
    "corpora": ["small"],
    "budgets": ["3 steps"],
    "seeds": 2,
    "judge_bytes": 1500,
    "variants": {"as it is": "", "faster": "learning_rate=0.01"},
}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A library with a corpus `small`, and one called `secret` that judges."""
    from lab import corpora

    def documents(_texts: Path, _downloads: Path) -> list[tuple[str, str]]:
        return [(f"page {number}", make_text(2000, seed=number)) for number in range(20)]

    recipes = [corpora.Recipe("small", "", documents), corpora.Recipe("secret", "", documents, is_judge=True)]
    monkeypatch.setattr(corpora, "RECIPES", {recipe.name: recipe for recipe in recipes})
    return corpora.Library(tmp_path / "corpora")


def train_here(config: Path, _run: Path) -> None:
    """Train in this process, which saves the start of another."""
    from headrace.jobs.train import train

    train(json.loads(config.read_bytes()))


@pytest.fixture
def sweep(tmp_path: Path, library: Library) -> Callable[..., Sweep]:
    """Return a function that makes a sweep of the tiny table, with changes to it."""
    from lab.sweep import Sweep
    from lab.table import Table

    def make(train: Callable[[Path, Path], None] = train_here, **changes: Any) -> Sweep:
        said: list[str] = []
        made = Sweep(Table.model_validate({**TABLE, **changes}), tmp_path / "out", library, train, said.append)
        made.__dict__["said"] = said
        return made

    return make
