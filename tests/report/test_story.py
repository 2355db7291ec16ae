"""What a report says first: the result in words, what differs between runs, and commands that can be copied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.report import report
from headrace.report.blocks import Command, Table
from headrace.report.comparison import differences
from headrace.report.performance import pipeline
from headrace.report.progress import course, loss_progression
from headrace.report.read import read_run
from headrace.report.recommendations import recommendations
from headrace.report.story import losses_fall, story
from headrace.run.directory import RunFolder
from tests.report.run_folder import configure, write_run


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every line of a run's metrics."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        change(line)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def text_of(folder: Path) -> str:
    return str(story([read_run(folder)]))


def test_the_loss_in_the_headline_is_not_that_of_one_batch(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")

    def spoil(line: dict[str, Any]) -> None:
        line["loss"] = 3.0 + 6.0 * (line["step"] == 40)

    rewrite(folder, spoil)
    assert read_run(folder).training_loss == pytest.approx(3.0 + 6.0 / 4)
    assert "'4.500'" in text_of(folder)
    assert "'9.000'" not in text_of(folder)


def test_a_run_that_goes_on_does_not_tell_what_is_not_known_yet(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    rewrite(folder, lambda line: [line.pop(key, None) for key in ("validation_loss", "validation_bits_per_byte")])  # type: ignore[func-returns-value]
    configure(folder, "training", threads=0)
    configure(folder, "data", validation_fraction=0.1)
    (folder / "corpus.json").unlink()
    with RunFolder(str(folder)).lock():
        page = str([*story([read_run(folder)]), *pipeline([read_run(folder)])])
    assert "It has not been evaluated yet." in page
    assert "('validation loss', 'not yet', '')" in page
    assert "('evaluated', 'not yet')" in page
    assert "('text', 'not yet')" in page
    assert "0 threads" not in page
    assert "It was not evaluated." in text_of(folder), "it has ended"
    configure(folder, "data", validation_fraction=0.0, validation_sources=[])
    assert "No text was held out to validate on." in text_of(folder)


def test_the_processor_is_not_busier_than_it_can_be(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    before = read_run(folder).cpu_cores

    def measure_the_peak(line: dict[str, Any]) -> None:
        line["cpu_s"] += 9.0 * (line["step"] > 20)  # between two steps, and no part of the training time

    rewrite(folder, measure_the_peak)
    assert before == pytest.approx(1.8)
    assert read_run(folder).cpu_cores == pytest.approx(1.8)


def test_what_came_once_is_not_to_come_half_as_often(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", evaluation=0.5)

    def evaluate_at_the_end(line: dict[str, Any]) -> None:
        if line["step"] < 40:
            line.pop("validation_loss", None)
            line["seconds"] |= {"evaluation": 0.0, "saving": 0.0}
        else:
            line["seconds"] |= {"evaluation": 9.0, "saving": 9.0}

    assert not any("evaluate_every" in command for command in commands_of(folder)), "a run chooses well by itself"
    configure(folder, "training", evaluate_every=10, save_every=10)
    assert any("training.evaluate_every=20" in command for command in commands_of(folder))
    rewrite(folder, evaluate_at_the_end)
    assert not any("evaluate_every" in command or "save_every" in command for command in commands_of(folder))
    assert "('evaluated', 'once')" in str(pipeline([read_run(folder)]))


def test_where_the_loss_was_going(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert "still falling at the end" in text_of(folder)
    assert losses_fall(read_run(folder))

    def overfit(line: dict[str, Any]) -> None:
        if "validation_loss" in line:
            line["validation_loss"] = 2.0 + abs(line["step"] - 20) / 40

    rewrite(folder, overfit)
    told = text_of(folder)
    assert "has risen from 2.000 to 2.500 since step 20 (20 steps" in told
    assert "2 evaluations), while training loss fell from" in told
    assert "learning the text by heart, after 164 epochs" in told
    assert "kept as the best" not in told, "nothing was saved"
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "best").symlink_to("step-00000020")
    assert "The checkpoint of step 20 is kept as the best, which generate, serve and export use." in text_of(folder)
    assert not losses_fall(read_run(folder))
    blocks = recommendations([read_run(folder)])
    lines = [block.line for block in blocks if isinstance(block, Command)]
    assert f"headrace train {folder}/config.json training.num_epochs=82 --out {folder}-shorter" in lines
    assert f"headrace train {folder}/config.json model.num_layers=2 --out {folder}-smaller" in lines
    assert not any("--resume" in line for line in lines), "going on would make it worse"
    assert "More text helps most" in str(blocks)
    rewrite(folder, lambda line: line.update(loss=3.0))
    told = text_of(folder)
    assert "lowest at step 20 (2.000) and has risen since." in told
    assert "by heart" not in told, "training does not go down"
    rewrite(folder, lambda line: line.pop("validation_loss", None))
    assert "It was not evaluated" in text_of(folder)


def test_runs_begin_with_what_differs(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("one", "two")]
    assert differences([read_run(folders[0])]) == []
    assert "are the same" in str(differences([read_run(folder) for folder in folders]))
    configure(folders[1], "training", learning_rate=0.5)
    (table,) = differences([read_run(folder) for folder in folders])
    assert isinstance(table, Table)
    assert table.rows == [["training.learning_rate", "0.003", "0.5"]]
    page = report(folders)
    assert page.index('id="differences"') < page.index('id="story"')


def test_runs_of_unlike_length_or_batch_share_an_axis(tmp_path: Path) -> None:
    short, long = write_run(tmp_path / "short", num_steps=10), write_run(tmp_path / "long", num_steps=100)
    axis = course([read_run(short), read_run(long)])
    assert (axis.label, axis.is_logarithmic) == ("step", True)
    assert not course([read_run(short)]).is_logarithmic
    configure(long, "training", batch_size=32)
    assert course([read_run(short), read_run(long)]).label == "tokens"
    (chart,) = loss_progression([read_run(short), read_run(long)])
    assert chart.x_label == "tokens"


def commands_of(folder: Path) -> list[str]:
    return [block.line for block in recommendations([read_run(folder)]) if isinstance(block, Command)]


def test_commands_fit_what_became_of_the_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "my run", evaluation=0.5)
    configure(folder, "training", max_steps=40, prompt="it's", evaluate_every=10)
    (folder / "checkpoints").mkdir()
    named = f"'{folder}'"
    assert commands_of(folder) == [
        f"""headrace generate {named} --prompt 'it'"'"'s'""",
        f"headrace train --resume {named} training.max_steps=80",
        f"headrace train {named}/config.json training.evaluate_every=20 --out {named}-faster",
        f"headrace tune --run {named}",
    ]
    configure(folder, "training", max_steps=0, max_minutes=1.5, num_epochs=0.25)
    assert commands_of(folder)[1].endswith("training.max_minutes=3 training.num_epochs=0.5")
    configure(folder, "run", resume=True)
    assert "training.evaluate_every=20 run.resume=false --out" in commands_of(folder)[2], "it begins anew elsewhere"
    (folder / "summary.json").unlink()
    assert f"headrace train --resume {named}" in commands_of(folder)
    with RunFolder(str(folder)).lock():
        assert len(commands_of(folder)) == 1, "nothing is to be started while it goes on"
