"""The command line starts at once: nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIGHT = """
import sys
from headrace.cli.main import main
sys.argv = ["headrace", *sys.argv[1:]]
try:
    main()
finally:
    heavy = [name for name in ("torch", "numpy", "pyarrow", "tokenizers") if name in sys.modules]
    print("imported", heavy, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["-h"], ["--version"], ["train", "--help"], ["generate", "-h"], ["config", "-h"]],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr == "imported []\n"


def test_the_public_names_are_imported_when_they_are_used() -> None:
    code = "import sys, headrace; assert 'numpy' not in sys.modules; headrace.Loader; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    import headrace

    assert all(hasattr(headrace, name) for name in headrace.__all__)
    assert set(headrace.__all__) <= set(dir(headrace))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = headrace.nonsense  # type: ignore[attr-defined]


def test_prepare_does_without_torch(tmp_path: Path) -> None:
    (text := tmp_path / "a.txt").write_text("some text\n")
    arguments = ["prepare", str(text), "data.tokenizer=byte", "--out", str(tmp_path / "cache")]
    done = subprocess.run([sys.executable, "-c", LIGHT, *arguments], capture_output=True, text=True, check=True)
    assert "torch" not in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("headrace tr", ["train"]),
        ("headrace train training.ba", ["training.batch_size="]),
        ("headrace train --preset sh", ["shakespeare-char"]),
        ("headrace generate --max", ["--max-tokens"]),
    ],
)
def test_the_shell_completes_commands_options_presets_and_keys(words: str, expected: list[str]) -> None:
    asked = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "headrace"], capture_output=True, text=True, check=True, env={**os.environ, **asked}
    )
    assert done.stdout.split() == expected
    assert not done.stderr
