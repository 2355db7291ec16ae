"""The generated reference is what the code says, and complete."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from headrace.cli.main import COMMANDS
from headrace.run.config import all_keys

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_reference", ROOT / "tools" / "write_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_up_to_date(writer: ModuleType) -> None:
    for path, text in writer.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"run: python tools/write_reference.py ({path.name})"


def test_every_key_is_in_the_reference() -> None:
    page = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    missing = [key for key in all_keys() if f"| `{key}` |" not in page]
    assert not missing


def test_every_command_is_in_the_reference_with_its_output() -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"## headrace {name}\n" in page
        assert f"$ headrace {name} " in page or f"$ headrace {name}\n" in page, f"{name}: tools/record_outputs.py"
