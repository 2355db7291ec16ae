"""Validation in whole runs: never a loss that does not exist, and each source by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.train import train
from headrace.run.pretraining import Pretraining
from headrace.run.start.find import find_checkpoint
from tests.conftest import make_text
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]


def written(folder: Path, num_bytes: int) -> Path:
    (folder / "corpus.txt").write_text(make_text(num_bytes))
    return folder / "corpus.txt"


@pytest.mark.parametrize("packing", ["stream", "document"])
def test_a_validation_part_shorter_than_a_sequence_is_evaluated(tmp_path: Path, packing: str) -> None:
    changes = {"training.max_length": 1024, "training.max_steps": 4, "training.batch_size": 2, "data.packing": packing}
    run = train(**settings(written(tmp_path, 15_000), tmp_path / "run", **changes))
    assert run.validation_loss is not None
    assert 4 < run.validation_loss < 6
    assert run.validation_bits_per_byte == pytest.approx(run.validation_loss / 0.6931, rel=0.01)


@pytest.mark.parametrize("num_bytes", [0, 500])
def test_too_little_text_is_no_validation(tmp_path: Path, num_bytes: int, command: Command) -> None:
    changes = {"training.max_length": 8, "training.learning_rate": 0.01}
    if num_bytes == 0:
        changes["data.validation_fraction"] = 0
    values = settings(written(tmp_path, num_bytes or 4000), tmp_path / "run", **changes)
    arguments = [f"{key}={json.dumps(value)}" for key, value in values.items() if key != "data.sources"]
    code, out, err = command("train", tmp_path / "corpus.txt", *arguments, "--json")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert result["validation_loss"] is None
    assert result["validation_bits_per_byte"] is None
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["validation_loss"] is None
    assert "validation_loss" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "0.0000" not in out + err
    assert err.count("no validation: ") == (num_bytes > 0)
    if num_bytes:
        assert "tokens are too few" in err
    best = find_checkpoint(tmp_path / "run")
    assert best.resolve() == (tmp_path / "run" / "checkpoints" / "last").resolve()
    assert best.resolve().name.endswith("12")


def mixture(tmp_path: Path, weights: tuple[float, float]) -> list[dict[str, Any]]:
    """A source that is learned at once, and one that is not."""
    (tmp_path / "easy.txt").write_text("ab" * 10_000)
    (tmp_path / "hard.txt").write_text(make_text(20_000))
    names = ("easy", "hard")
    return [
        {"path": str(tmp_path / f"{name}.txt"), "name": name, "weight": weight}
        for name, weight in zip(names, weights, strict=True)
    ]


def test_the_loss_of_a_mixture_is_that_of_its_sources_in_their_shares(tmp_path: Path, command: Command) -> None:
    values = settings(tmp_path / "corpus.txt", tmp_path / "run", **{"training.evaluation_tokens": 0})
    values["data.sources"] = mixture(tmp_path, (3, 1))
    with opened(values) as pretraining:
        evaluations = [info.evaluation for info in pretraining.steps() if info.evaluation]
    for evaluation in evaluations:
        easy, hard = evaluation.sources["easy"], evaluation.sources["hard"]
        assert easy is not None and hard is not None
        assert easy < hard - 0.1
        assert evaluation.loss == pytest.approx((3 * easy + hard) / 4)
        assert evaluation.bits_per_byte == pytest.approx(evaluation.loss / 0.693147, rel=0.01)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["validation_loss_by_source"] == evaluations[-1].sources
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["validation_loss_by_source"] == evaluations[-1].sources
    code, _, _ = command("report", tmp_path / "run")
    assert code == 0
    assert f"{evaluations[-1].sources['hard']:.3f}" in (tmp_path / "run" / "report.html").read_text()


def opened(values: dict[str, Any]) -> Pretraining:
    from headrace.run.config import Layers

    layers = Layers()
    layers.add(values, "test")
    return Pretraining(layers.build())
