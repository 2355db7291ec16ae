"""Tables: what they may say, what is refused and how, and the cells that they make."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from headrace.errors import UsageError
from tests.lab.conftest import BENCHMARKS, TABLE

SMALL = """
corpora = ["small"]
budgets = ["3 steps", "2 min"]
seeds = 2
base = "d_model=64"
[variants]
plain = ""
"demo, wide" = "--preset demo model.d_model=96"
"""


def read(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    from lab.table import read_table

    (tmp_path / "table.toml").write_text(text)
    return read_table(tmp_path / "table.toml")


def test_cells_are_all_combinations_and_every_variant_comes_once_before_any_comes_twice(tmp_path: Path) -> None:
    cells = read(tmp_path, SMALL).cells
    assert len({cell.name for cell in cells}) == len(cells) == 8
    assert [cell.seed for cell in cells] == [0] * 4 + [1] * 4
    assert cells[1].name == "demo-wide--small--3-steps--seed-0"


def test_values_lie_over_each_other_in_order(tmp_path: Path) -> None:
    table = read(tmp_path, SMALL)
    config = table.layers("demo, wide", {"data.tokenizer": "char"}).build()
    assert (config.model.d_model, config.training.max_length, config.data.tokenizer) == (96, 128, "char")
    assert table.layers("plain", {}).build().model.d_model == 64
    assert table.judging_context() == 256  # the longest that any variant trains with


def test_windows_that_a_run_chooses_need_a_context_to_be_judged_in(tmp_path: Path) -> None:
    text = SMALL.replace("d_model=64", "").replace("3 steps", "3 s")
    with pytest.raises(UsageError, match='context = "own"'):
        read(tmp_path, text).judging_context()
    assert read(tmp_path, f'context = "own"\n{text}').judging_context() == "own"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("d_model=64", "d_modle=64", "d_modle"),
        ("d_model=64", "max_steps=5", "set by the laboratory"),
        ("d_model=64", "corpus.txt", "key=value and --preset NAME"),
        ("--preset demo", "--preset demon", "no such preset"),
        ("3 steps", "3 stops", "3 stops"),
        ("seeds = 2", 'seeds = 2\nbaseline = "none"', "not one of the variants"),
        ("seeds = 2", "seeds = 2\nseed = 1", "A table has the keys"),
        ("plain =", '"demo wide" =', "folder of two"),
    ],
)
def test_mistakes_are_told_before_anything_runs(tmp_path: Path, before: str, after: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"table\.toml") as told:
        read(tmp_path, SMALL.replace(before, after))
    assert words in str(told.value)


def test_flops_become_steps_by_the_counts_of_the_network() -> None:
    from lab.budget import Budget
    from lab.table import Table

    from headrace.models.counts import count

    table = Table.model_validate(TABLE)
    config = table.layers("as it is", {"model.vocab_size": 257}).build()
    update = count(config.model, 32).training_flops_per_token * 4 * 32
    assert Budget(7.5 * update, "FLOPs").limits(config)["training.max_steps"] == 7
    assert Budget(90, "s").limits(config) == {"training.max_steps": 0, "training.max_minutes": 1.5}
    with pytest.raises(UsageError, match="less than one update"):
        Budget(0.5 * update, "FLOPs").limits(config)


def test_tables_of_the_project_are_sound() -> None:
    from lab.corpora import RECIPES
    from lab.table import read_table

    tables = sorted((BENCHMARKS / "lab").glob("*.toml"))
    assert tables
    for path in tables:
        assert set(read_table(path).corpora) <= RECIPES.keys()


@pytest.mark.parametrize("name", ["budget", "table", "spread", "corpora"])
def test_examples_in_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"lab.{name}"))
    assert found.attempted and not found.failed
