"""The house has layers and rooms: imports go downward only, no job imports another, and no room is a drawer."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "headrace"
LAYERS = [
    ["errors"],
    ["activity", "extras", "files", "units", "sizes", "locks", "quick", "stages"],
    ["data", "models", "machine"],
    ["native"],
    ["distributed"],
    ["training", "generation", "perf"],
    ["interop"],
    ["run"],
    ["report", "bench", "instruments", "serve"],
    ["jobs"],
    ["__init__"],
    ["cli"],
    ["__main__"],
]
DATA_LAYERS = [["corpus"], ["tokens", "selection"], ["cache"], ["order"], ["explain"]]
MOST_MODULES = 15
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ROOM_LEVEL = {name: level for level, names in enumerate(DATA_LAYERS) for name in names}
MODULES = sorted(SOURCE.rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    """The modules of headrace that a module imports, as dotted names below `headrace`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.partition(".")[2] for name in names if name == "headrace" or name.startswith("headrace.")}
    return found


def part_of(module: str) -> str:
    """The layer that a dotted name belongs to; what is not a layer is a public name of the package."""
    part = module.split(".")[0]
    return part if part in LEVEL else "__init__"


def module_id(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_imports_go_downward(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in LEVEL, f"{own} has no place in the house: add it to the layers"
    parts = {part_of(module) for module in imported_modules(path)} - {own}
    if "peers" in path.parts:
        parts -= {"__init__"}  # a peer is written as a user writes it: with the public names
    for part in parts:
        assert LEVEL[part] < LEVEL[own], f"{own} must not import {part}"


@pytest.mark.parametrize("path", sorted((SOURCE / "data").rglob("*.py")), ids=module_id)
def test_rooms_of_the_data_engine_import_downward(path: Path) -> None:
    own = path.relative_to(SOURCE / "data").parts[0]
    if own not in ROOM_LEVEL:
        return  # what callers touch may use every room
    for module in imported_modules(path):
        parts = module.split(".")
        if parts[0] == "data" and parts[1] != own:
            assert parts[1] in ROOM_LEVEL, f"{own} must not import data.{parts[1]}"
            assert ROOM_LEVEL[parts[1]] < ROOM_LEVEL[own], f"{own} must not import {parts[1]}"


@pytest.mark.parametrize("path", sorted((SOURCE / "jobs").glob("*.py")), ids=module_id)
def test_no_job_imports_another(path: Path) -> None:
    assert not [module for module in imported_modules(path) if module.startswith("jobs.")]


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=module_id)
def test_no_room_is_a_drawer(folder: Path) -> None:
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES, f"{len(modules)} modules in one folder: give some of them a room of their own"


@pytest.mark.parametrize("path", sorted((SOURCE / "data").rglob("*.py")), ids=module_id)
def test_data_engine_knows_no_framework(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.split(".")[0] in ("torch", "jax", "grain") for name in names)
