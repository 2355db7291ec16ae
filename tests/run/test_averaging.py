"""Runs whose model is an average of the weights: trained, saved, resumed and loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headrace.errors import CheckpointError
from headrace.native.library import why_missing
from headrace.run.pretraining import Pretraining
from headrace.run.saved_model import load_trained
from headrace.training.restore import file_hash
from tests.run.tiny_run import are_same, change_state, fresh_corpus, losses, saved_tensors, train_until

AVERAGED = {"training.average": 0.9, "training.save_every": 8, "training.max_steps": 24, "training.evaluate_every": 24}
NATIVE = {"training.engine": "native", "training.micro_batch_size": 4}
FILES = ("model.safetensors", "unaveraged.safetensors", "optimizer.safetensors")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh_corpus(tmp_path, monkeypatch)


def train(corpus: Path, name: str, stop_after: int | None = None, **changes: Any) -> Pretraining:
    return train_until(corpus, name, stop_after, **{**AVERAGED, **changes})


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_resumed_run_ends_in_the_same_weights_and_the_same_average(corpus: Path, engine: str) -> None:
    if engine == "native" and why_missing():
        pytest.skip("the native library was not built")
    changes = NATIVE if engine == "native" else {}
    train(corpus, "whole", **changes)
    train(corpus, "broken", stop_after=22, **changes)  # saved at 16; from 18 on every second update counts
    resumed = train(corpus, "broken", **changes, **{"run.resume": True})
    assert resumed.computing.execution.engine == engine
    for file in FILES:
        assert are_same(saved_tensors(corpus, "whole", file), saved_tensors(corpus, "broken", file)), file
    assert losses(corpus.parent / "whole") == losses(corpus.parent / "broken")


def test_training_is_the_same_with_and_without_an_average(corpus: Path) -> None:
    train(corpus, "with")
    without = train(corpus, "without", **{"training.average": 0})
    assert losses(corpus.parent / "with") == losses(corpus.parent / "without")
    weights = saved_tensors(corpus, "without", "model.safetensors")
    assert are_same(saved_tensors(corpus, "with", "unaveraged.safetensors"), weights)
    assert not are_same(saved_tensors(corpus, "with", "model.safetensors"), weights)
    assert not (without.folder.path / "checkpoints" / "last" / "unaveraged.safetensors").exists()


def test_the_average_is_what_is_evaluated_and_what_others_load(corpus: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pretraining = train(corpus, "run")
    last = pretraining.folder.path / "checkpoints" / "last"
    network = load_trained(last).network
    assert are_same(network.to_hugging_face()[1], saved_tensors(corpus, "run", "model.safetensors"))
    evaluator = pretraining._evaluator
    assert evaluator is not None
    assert evaluator(network, 0).loss == pytest.approx(pretraining.run.validation_loss, rel=1e-6)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(last)
    tokens = torch.arange(32)[None]
    torch.testing.assert_close(theirs(tokens).logits, network.logits(network(tokens)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("before", "after"), [(0, 0.9), (0.9, 0)])
def test_averaging_may_begin_and_end_when_a_run_is_resumed(corpus: Path, before: float, after: float) -> None:
    train(corpus, "run", stop_after=20, **{"training.average": before})
    train(corpus, "run", **{"training.average": after, "run.resume": True})
    train(corpus, "plain", **{"training.average": 0})
    assert losses(corpus.parent / "run") == losses(corpus.parent / "plain")
    file = "unaveraged.safetensors" if after else "model.safetensors"
    assert are_same(saved_tensors(corpus, "run", file), saved_tensors(corpus, "plain", "model.safetensors"))


def put_other_tensors(checkpoint: Path) -> None:
    path = checkpoint / "unaveraged.safetensors"
    save_file({"another": torch.zeros(2)}, path)
    change_state(checkpoint, lambda state: state["files"].update({path.name: file_hash(path)}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda last: (last / "unaveraged.safetensors").unlink(), r"unaveraged\.safetensors: missing"),
        (lambda last: shutil.copy(last / "model.safetensors", last / "unaveraged.safetensors"), "damaged"),
        (lambda last: change_state(last, lambda state: state["files"].pop("unaveraged.safetensors")), "damaged"),
        (put_other_tensors, "no tensor"),
    ],
    ids=["missing", "another", "not listed", "other tensors"],
)
def test_damage_is_refused(corpus: Path, damage: Any, message: str) -> None:
    train(corpus, "run", **{"training.max_steps": 4})
    damage((corpus.parent / "run" / "checkpoints" / "last").resolve())
    with pytest.raises(CheckpointError, match=message):
        train(corpus, "run", **{"run.resume": True})
