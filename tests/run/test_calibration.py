"""Runs that are calibrated at their end: trained, saved, continued and loaded, and how a factor is found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.errors import UsageError
from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.native.library import why_missing
from headrace.run.pretraining import Pretraining
from headrace.run.saved_model import load_trained
from headrace.run.session.calibration import MOST, find_factor, lowest_point
from tests.run.tiny_run import are_same, configured, fresh_corpus, losses, saved_tensors, train_until

MODEL, TRAINED = "model.safetensors", "unaveraged.safetensors"
CALIBRATED = {"training.calibrate": True}
NORMS = {"qwen3": ["model.norm.weight"], "gpt2": ["transformer.ln_f.weight", "transformer.ln_f.bias"]}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh_corpus(tmp_path, monkeypatch)


def train(corpus: Path, name: str, **changes: Any) -> Pretraining:
    return train_until(corpus, name, **{**CALIBRATED, **changes})


@pytest.mark.parametrize("arch", NORMS)
def test_only_the_last_norm_is_divided_and_training_is_the_same(corpus: Path, arch: str) -> None:
    run = train(corpus, "with", **{"model.arch": arch}).run
    plain = train(corpus, "without", **{"model.arch": arch, "training.calibrate": False}).run
    assert losses(corpus.parent / "with") == losses(corpus.parent / "without")
    before, after = saved_tensors(corpus, "with", TRAINED), saved_tensors(corpus, "with", MODEL)
    assert are_same(before, saved_tensors(corpus, "without", MODEL))
    assert not (corpus.parent / "without" / "checkpoints" / "last" / TRAINED).exists()
    for name in NORMS[arch]:
        torch.testing.assert_close(after.pop(name), before.pop(name) * run.calibrated_by)
    assert are_same(before, after)
    assert run.calibrated_by != 1.0 and plain.calibrated_by == 1.0
    assert run.validation_loss is not None and plain.validation_loss is not None
    assert run.validation_loss < plain.validation_loss


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_the_calibrated_model_is_what_is_evaluated_and_what_others_load(corpus: Path, engine: str) -> None:
    if engine == "native" and why_missing():
        pytest.skip("the native library was not built")
    pretraining = train(corpus, "run", **{"training.engine": engine, "training.micro_batch_size": 4})
    network = load_trained(pretraining.folder.path / "checkpoints" / "last").network
    evaluator = pretraining._evaluator
    assert evaluator is not None
    assert abs(pretraining.run.calibrated_by - 1) > 0.01
    assert evaluator(network, 0).loss == pytest.approx(pretraining.run.validation_loss, rel=1e-5)


def test_a_calibrated_run_that_goes_on_is_the_one_that_was_not_calibrated(corpus: Path) -> None:
    for name, calibrates in (("with", True), ("without", False)):
        train(corpus, name, **{"training.max_steps": 6, "training.calibrate": calibrates})
        train(corpus, name, **{"training.calibrate": calibrates, "run.resume": True})
    assert losses(corpus.parent / "with") == losses(corpus.parent / "without")
    assert are_same(saved_tensors(corpus, "with", TRAINED), saved_tensors(corpus, "without", MODEL))


def test_an_average_of_weights_is_not_calibrated(corpus: Path) -> None:
    with pytest.raises(UsageError, match="an average of weights is not calibrated"):
        train(corpus, "run", **{"training.average": 0.5})


def test_an_average_that_begins_on_resume_begins_with_the_weights_as_they_were_trained(corpus: Path) -> None:
    averaging = {"training.calibrate": False, "training.average": 0.9, "run.resume": True}
    for name, calibrates in (("with", True), ("without", False)):
        train(corpus, name, **{"training.max_steps": 6, "training.calibrate": calibrates})
        train(corpus, name, **averaging)
    assert are_same(saved_tensors(corpus, "with", MODEL), saved_tensors(corpus, "without", MODEL))


@pytest.mark.parametrize("fraction", [0, 0.03])
def test_a_run_with_little_validation_text_is_not_calibrated_and_says_so(corpus: Path, fraction: float) -> None:
    pretraining = train(corpus, "run", **{"data.validation_fraction": fraction})
    assert pretraining.run.calibrated_by == 1.0 and pretraining.run.steps == 12
    assert not (corpus.parent / "run" / "checkpoints" / "last" / TRAINED).exists()
    assert any("will not be calibrated" in notice for notice in pretraining.notices)


def test_a_run_that_is_stopped_is_not_calibrated(corpus: Path) -> None:
    steps = iter(range(100))
    with Pretraining(configured(corpus, "run", **CALIBRATED), lambda: next(steps) > 4) as pretraining:
        list(pretraining.steps())
    assert pretraining.run.was_stopped and pretraining.run.calibrated_by == 1.0
    assert not (corpus.parent / "run" / "checkpoints" / "last" / TRAINED).exists()


def test_losses_are_compared_without_the_factor_and_the_best_is_the_calibrated_model(corpus: Path) -> None:
    run, plain = train(corpus, "with").run, train(corpus, "without", **{"training.calibrate": False}).run
    assert run.compared_loss == plain.compared_loss == plain.validation_loss
    assert run.best_validation_loss == run.validation_loss and run.best_step == run.steps
    lines = (corpus.parent / "with" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["compared_loss"] == pytest.approx(plain.validation_loss, rel=1e-6)


def test_a_summary_that_was_not_written_knows_the_factor(corpus: Path) -> None:
    run = train(corpus, "run").run
    (corpus.parent / "run" / "summary.json").unlink()
    assert train(corpus, "run", **{"run.resume": True}).run.calibrated_by == run.calibrated_by != 1.0


def test_a_network_whose_last_norm_has_no_weights_stays_as_it_is() -> None:
    network = build(ModelConfig(d_model=8, num_layers=1, num_heads=1, vocab_size=9, context=4))
    network.norm = torch.nn.Identity()
    assert find_factor(network, lambda: 2.0) == (1.0, 2.0)


@pytest.mark.parametrize("losses", [(1.0, 1.0, math.inf), (math.nan, 1.0, 2.0), (1.0, 1.0, 1.0)], ids=str)
def test_no_factor_follows_from_losses_that_say_nothing(losses: tuple[float, float, float]) -> None:
    assert lowest_point(*losses, 0.15) == 0.0


@pytest.mark.parametrize(("best", "found"), [(1.0, 1.0), (1.07, 1.07), (0.95, 0.95), (2.0, 1 + MOST), (0.5, 1 - MOST)])
def test_a_factor_is_found_and_the_network_left_as_it_was(best: float, found: float) -> None:
    network = build(ModelConfig(arch="gpt2", d_model=8, num_layers=1, num_heads=1, vocab_size=9, context=4))
    norm_weight(network).copy_(torch.linspace(0.5, 2.0, 8))
    before = [parameter.detach().clone() for parameter in network.parameters()]
    scale = float(norm_weight(network).mean())

    def loss() -> float:
        return 2.0 + (float(norm_weight(network).mean()) / scale - best) ** 2

    assert find_factor(network, loss) == (pytest.approx(found, rel=1e-5), pytest.approx(2.0 + (1 - best) ** 2))
    assert all(torch.equal(now, then) for now, then in zip(network.parameters(), before, strict=True))


def norm_weight(network: Any) -> Tensor:
    weight: Tensor = network.norm.weight.detach()
    return weight
