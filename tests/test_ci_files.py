"""The Dockerfile and the workflows, read by real linters: neither can be run here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def lint(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a linter of the environment; skip where it is not installed."""
    program = Path(sys.executable).with_name(name)
    if not program.exists():
        pytest.skip(f"{name} is not installed: pip install 'headrace[dev]'")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


def test_hadolint_reads_the_dockerfile(tmp_path: Path) -> None:
    done = lint("hadolint", ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp && sudo make\n")
    assert lint("hadolint", tmp_path / "Dockerfile").returncode == 1


def test_the_workflows_are_what_github_expects(tmp_path: Path) -> None:
    schema = ("--builtin-schema", "vendor.github-workflows")
    done = lint("check-jsonschema", *schema, *WORKFLOWS)
    assert done.returncode == 0, done.stdout
    (tmp_path / "a.yml").write_text(WORKFLOWS[0].read_text().replace("runs-on", "run-on"))
    assert lint("check-jsonschema", *schema, tmp_path / "a.yml").returncode == 1


def test_zizmor_finds_nothing_unsafe_in_the_workflows(tmp_path: Path) -> None:
    done = lint("zizmor", "--offline", ROOT / ".github" / "workflows")
    assert done.returncode == 0, done.stdout
    text = WORKFLOWS[0].read_text().replace("pypa/cibuildwheel", "somebody/cibuildwheel")
    (tmp_path / "a.yml").write_text(text)
    assert lint("zizmor", "--offline", "--config", ROOT / ".github" / "zizmor.yml", tmp_path / "a.yml").returncode != 0
