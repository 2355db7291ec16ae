"""Imports go downward only: cli, peers → recipes, interop → training, generation, perf → data, models, machine."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "headrace"
LAYERS = [
    ["errors"],
    ["files", "locks"],
    ["data", "models", "machine"],
    ["training", "generation", "perf"],
    ["recipes", "interop"],
    ["__init__"],
    ["cli", "peers"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(SOURCE.rglob("*.py"))


def imported_parts(path: Path) -> set[str]:
    """Top-level parts of headrace that a module imports."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "headrace":
                names = [f"headrace.{alias.name}" for alias in node.names]
        for name in names:
            if name == "headrace" or name.startswith("headrace."):
                part = name.partition(".")[2].split(".")[0]
                parts.add(part if part in LEVEL else "__init__")
    return parts


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_downward(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in LEVEL, f"{own} has no place in the house: add it to the layers"
    for part in imported_parts(path) - {own}:
        assert LEVEL[part] < LEVEL[own], f"{own} must not import {part}"


@pytest.mark.parametrize("path", sorted((SOURCE / "data").rglob("*.py")), ids=lambda path: path.name)
def test_data_engine_knows_no_framework(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.split(".")[0] in ("torch", "jax", "grain") for name in names)
