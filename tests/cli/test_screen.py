"""The live display in a virtual terminal: from the first step to the end, after Ctrl-C, and after a resume."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.progress import TrainingDisplay
from headrace.cli.result import show_result
from headrace.jobs.train import train
from headrace.run.config import Layers
from headrace.run.pretraining import Pretraining
from headrace.run.records import Run
from tests.cli.terminal import Attach, Terminal
from tests.conftest import make_text
from tests.run.tiny_run import settings

SIZES = [(80, 24), (160, 45)]
FIGURES = ("epoch", "tokens", "speed", "elapsed", "left", "loss", "validation", "of peak", "data wait", "memory",
           "learning rate", "bottleneck", "time", "newest sample")  # fmt: skip
OF_THE_SCREEN = ("━", "│", "●", "computing step", "evaluating (", "saving (", "ending (", "newest sample", "^C")


@pytest.fixture(scope="module")
def corpus() -> Iterator[Path]:
    """A text in a folder with a short path, because long ones take rows of a small terminal."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "corpus.txt").write_text(make_text(40_000))
        yield Path(folder) / "corpus.txt"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def shown_run(
    values: dict[str, Any], terminal: Terminal, on_step: Callable[[int], bool]
) -> tuple[Run, list[list[str]]]:
    """Run with the display; return the run and what was in sight whenever something began and after every step.

    `on_step` says after a step whether somebody types Ctrl-C now.
    """
    layers, frames = Layers(), []
    layers.add(values, "test")
    is_stopping = False
    with Pretraining(layers.build(), should_stop=lambda: is_stopping) as pretraining:
        with TrainingDisplay(pretraining) as display:
            assert display._live is not None

            def look() -> None:
                display._live.refresh()  # type: ignore[union-attr]
                frames.append(terminal.rows())

            def begin(doing: str) -> None:
                display.begin(doing)
                look()

            pretraining.activity = begin
            for info in pretraining.steps():
                display.update(info)
                look()
                if on_step(info.step):
                    terminal.type("^C")
                    is_stopping = True
                    display.stop()
                    look()
        show_result(pretraining.run, pretraining.config)
        return pretraining.run, frames


def check_frames(frames: list[list[str]], first_step: int) -> None:
    """Check that frames have everything, whole, and the header above it."""
    begun = [frame for frame in frames if any(row.startswith("step ") for row in frame)]
    assert begun
    for frame in frames:
        text = "\n".join(frame)
        assert "qwen3: " in frame[0], "the header is kept"
        assert "tokenizer byte of 257 tokens" in " ".join(text.split())
        assert "…" not in text
    for frame in begun:
        text = "\n".join(frame)
        assert [name for name in FIGURES if name not in text] == []
    for doing in (f"computing step {first_step}", "evaluating", "saving"):
        assert any(f"{doing}" in row for frame in frames for row in frame), doing


def of_the_screen(rows: list[str]) -> list[str]:
    """Return the rows that only the live display has; the result may name saving too, as what took most of the time."""
    found = [row for row in rows if any(part in row for part in OF_THE_SCREEN)]
    return [row for row in found if not row.startswith("  bottleneck")]


def check_end(terminal: Terminal) -> None:
    """Check that nothing of the live display is left, here or in what has scrolled out, and that the cursor is back."""
    assert of_the_screen(terminal.all_rows()) == []
    assert terminal.has_cursor


@pytest.mark.parametrize("size", SIZES)
def test_a_run_from_start_to_end(corpus: Path, tmp_path: Path, terminal_of: Attach, size: tuple[int, int]) -> None:
    terminal = terminal_of(*size)
    run, frames = shown_run(settings(corpus, tmp_path / "run"), terminal, on_step=lambda step: False)
    check_frames(frames, first_step=1)
    assert any(row.startswith("step 12 of 12") for row in frames[-1])
    assert sum(row.count("●") for row in frames[-1]) == 1 + 3, "the legend and three evaluations"
    check_end(terminal)
    rows = terminal.all_rows()
    text = "\n".join(rows)
    assert f"{run.first_loss:.4f} → {run.smoothed_loss:.4f}" in text
    assert f"  headrace report {tmp_path / 'run'}" in "".join(rows), "commands are whole, however long"


@pytest.mark.parametrize("size", SIZES)
def test_ctrl_c_and_resume(corpus: Path, tmp_path: Path, terminal_of: Attach, size: tuple[int, int]) -> None:
    values = settings(corpus, tmp_path / "run")
    terminal = terminal_of(*size)
    run, frames = shown_run(values, terminal, on_step=lambda step: step == 5)
    assert run.was_stopped
    assert any("stopping: saving" in row for frame in frames for row in frame)
    check_end(terminal)
    assert f"headrace train --resume {tmp_path / 'run'}" in "".join(terminal.all_rows())

    terminal = terminal_of(*size)
    run, frames = shown_run({**values, "run.resume": True}, terminal, on_step=lambda step: False)
    check_frames(frames, first_step=8)
    first = next(frame for frame in frames if any(row.startswith("step ") for row in frame))
    assert any(row.lstrip().startswith("step 1 ") for row in first), "the plot begins with the run"
    assert sum(row.count("●") for row in first) == 1 + 1, "the evaluation before the resume is there"
    check_end(terminal)


def test_what_is_printed_stays_in_sight_above_the_screen(corpus: Path, tmp_path: Path, terminal_of: Attach) -> None:
    train(**settings(corpus, tmp_path / "run"))
    terminal = terminal_of(80, 24)
    values = settings(corpus, tmp_path / "run", **{"run.resume": True, "training.max_steps": 14})
    layers = Layers()
    layers.add(values, "test")
    with Pretraining(layers.build()) as pretraining, TrainingDisplay(pretraining) as display:
        for number, info in enumerate(pretraining.steps()):
            info.warning = f"warning number {number} " + "that is longer than a row of the terminal " * 2
            display.update(info)
        assert display._live is not None
        display._live.refresh()
        rows = terminal.rows()
    assert "qwen3" in rows[0]
    assert sum("warning: warning number" in row for row in rows) == 2
    assert any(row.startswith("step 14 of 14") for row in rows)
    check_end(terminal)


@pytest.mark.parametrize("size", [(64, 20), (80, 18), (60, 40), (120, 40)])
def test_the_terminal_is_resized_in_a_run(
    corpus: Path, tmp_path: Path, terminal_of: Attach, size: tuple[int, int]
) -> None:
    terminal = terminal_of(100, 30)

    def on_step(step: int) -> bool:
        if step == 5:
            terminal.resize(*size)
        return False

    _, frames = shown_run(settings(corpus, tmp_path / "run"), terminal, on_step)
    after = [frame for frame in frames if any(row.startswith(("step 7 ", "step 12 ")) for row in frame)]
    assert after, "\n".join(frames[-1])
    for frame in after:
        text = "\n".join(frame)
        assert text.count("qwen3: ") == 1, "the header is kept"
        assert text.count("● validation") == text.count("━ loss") == text.count("of peak") == 1, text
        assert "…" not in text
    assert of_the_screen(terminal.rows()) == []
