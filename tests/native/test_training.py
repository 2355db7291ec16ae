"""Runs that are computed natively: chosen, saved, resumed, and without the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headrace.distributed.replicas import Replica
from headrace.errors import UsageError
from headrace.models.config import ModelConfig
from headrace.native.engine import planned_bytes
from headrace.native.library import MASK, available_instructions, instructions, why_missing
from headrace.run.config import Config
from headrace.run.pretraining import Pretraining
from headrace.training.autotune import Search
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.step import accumulate
from headrace.training.ways.alternatives import why_not_native
from headrace.training.ways.comparing import answer
from headrace.training.ways.memory import SPARE_BYTES, pass_bytes
from tests.run import tiny_run
from tests.run.tiny_run import losses
from tests.training.tiny import random_batch, small

needs_library = pytest.mark.skipif(bool(why_missing()), reason="the native library was not built")
NATIVE = {"training.engine": "native", "training.micro_batch_size": 4, "training.threads": 2}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return tiny_run.fresh_corpus(tmp_path, monkeypatch)


def configured(corpus: Path, name: str, **changes: Any) -> Config:
    return tiny_run.configured(corpus, name, **{**NATIVE, **changes})


def train(config: Config, num_steps: int | None = None) -> Pretraining:
    with Pretraining(config) as pretraining:
        for info in pretraining.steps():
            if info.step == num_steps:
                break
    return pretraining


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "checkpoints" / "last" / "model.safetensors"))


@needs_library
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_resumed_natively_is_the_unbroken_run(corpus: Path, precision: str) -> None:
    often = {"training.precision": precision, "training.save_every": 4}
    train(configured(corpus, "whole", **often))
    train(configured(corpus, "broken", **often), num_steps=7)
    resumed = train(configured(corpus, "broken", **often, **{"run.resume": True}))
    assert resumed.computing.execution.engine == "native"
    assert losses(corpus.parent / "broken") == losses(corpus.parent / "whole")
    whole, broken = weights(corpus.parent / "whole"), weights(corpus.parent / "broken")
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


@needs_library
def test_losses_are_those_of_torch(corpus: Path) -> None:
    train(configured(corpus, "native"))
    train(configured(corpus, "torch", **{"training.engine": "torch"}))
    for (_, ours), (_, theirs) in zip(losses(corpus.parent / "native"), losses(corpus.parent / "torch"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


@needs_library
@pytest.mark.parametrize("is_asked", [True, False], ids=["asked for", "library gone"])
def test_a_run_resumed_with_torch_says_that_rounding_differs(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    train(configured(corpus, "run", **{"training.save_every": 4}), num_steps=5)
    changes = {"training.engine": "torch" if is_asked else "auto"}
    if not is_asked:
        monkeypatch.setattr("headrace.native.engine.why_missing", lambda: "it was lost")
    resumed = train(configured(corpus, "run", **changes, **{"run.resume": True}))
    assert resumed.computing.execution.engine == "torch"
    notice = next(notice for notice in resumed.notices if "rounding" in notice)
    assert is_asked or "it was lost" in notice


def test_what_the_library_cannot_do_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model, training = ModelConfig(vocab_size=50, context=16), TrainingConfig(engine="native", batch_size=4)
    monkeypatch.setattr("headrace.native.engine.why_missing", lambda: "it was not built")
    with pytest.raises(UsageError, match="engine=native is not possible: it was not built"):
        Search(model, training)
    assert all(way.engine == "torch" for way in Search(model, TrainingConfig(batch_size=4)).ways)
    assert "gradient checkpointing" in why_not_native(model, TrainingConfig(gradient_checkpointing=True))
    assert "fsdp" in why_not_native(model, training, "fsdp")


@needs_library
def test_both_engines_are_compared_unless_one_is_asked_for() -> None:
    model = ModelConfig(vocab_size=50, context=256)
    engines = {
        engine: {way.engine for way in Search(model, TrainingConfig(engine=engine)).ways}  # type: ignore[arg-type]
        for engine in ("auto", "torch", "native")
    }
    assert engines["auto"] == {"torch", "native"} and engines["torch"] == {"torch"}


@needs_library
@pytest.mark.parametrize("faster", ["float32", "bfloat16"])
def test_pytorch_is_not_tried_in_float32_where_native_steps_are_faster_in_bfloat16(faster: str) -> None:
    seen: set[Execution] = set()

    def measure(way: Execution) -> float:
        seen.add(way)
        return (1.0 if way.precision == faster else 2.0) * (1.0 if way.engine == "native" else 1.1)

    search = Search(ModelConfig(vocab_size=50, context=256), TrainingConfig(threads=2))
    answer(search.measurements(), measure)
    assert (search.best.engine, search.best.precision) == ("native", faster)
    tried = {way.precision for way in seen if way.engine == "torch"}
    assert tried == ({"bfloat16"} if faster == "bfloat16" else {"float32", "bfloat16"})


def searched(monkeypatch: pytest.MonkeyPatch, spare_bytes: int, **changes: Any) -> tuple[Search, list[Execution]]:
    """Search where two threads and this many bytes are left for passes; return the ways that were measured, too."""
    given: dict[str, Any] = {"batch_size": 8, "max_length": 256, "optimizer": "adamw", **changes}
    model, training = ModelConfig(vocab_size=50, context=256), TrainingConfig(**given)
    monkeypatch.setattr("headrace.training.ways.alternatives.torch.get_num_threads", lambda: 2)
    used, measured = {"bytes": 1000}, []
    monkeypatch.setattr("headrace.training.autotune.memory_bytes", lambda: used["bytes"])

    def measure(way: Execution) -> float:
        measured.append(way)
        planned = pass_bytes(model, training.sequence_length, way) if way.engine == "native" else 0
        used["bytes"] = 1000 + planned  # stays until passes of another kind
        assert planned <= spare_bytes
        return 1.0 if way.engine == "native" else 2.0

    search = Search(model, training, memory_limit=1000 + SPARE_BYTES + spare_bytes)
    answer(search.measurements(), measure)
    return search, measured


@needs_library
def test_the_memory_of_native_steps_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig(vocab_size=50, context=256)
    plan = planned_bytes(model, 8, 256, "float32", 2)
    search, measured = searched(monkeypatch, plan, precision="float32")
    assert measured[0].engine == "native", "its memory is known before it runs"
    assert (search.best.engine, search.best.micro_batch_size) == ("native", 8)
    assert sum(way.engine == "native" for way in measured) > 2, "after the choice of threads too"


@needs_library
def test_native_steps_take_fewer_sequences_then_fewer_threads_below_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig(vocab_size=50, context=256)
    few = searched(monkeypatch, planned_bytes(model, 2, 256, "float32", 2), precision="float32")[0].best
    assert (few.engine, few.micro_batch_size, few.threads) == ("native", 2, 2)
    one = searched(monkeypatch, planned_bytes(model, 1, 256, "float32", 1), precision="float32")[0].best
    assert (one.engine, one.micro_batch_size, one.threads) == ("native", 1, 1)
    two = planned_bytes(model, 2, 256, "float32", 2)
    given = searched(monkeypatch, two, precision="float32", micro_batch_size=2)[0].best
    assert (given.engine, given.micro_batch_size) == ("native", 2)


@needs_library
def test_native_memory_is_given_back_where_more_would_break_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, batch, way = Replica(small()), random_batch(), Execution(8, threads=2, engine="native")
    loss, _ = accumulate(replica, batch, way)
    step = replica.native_step("float32", torch.get_num_threads())
    assert step.bytes_to_plan(8, 16) == 0 < step.bytes_to_plan(1, 16)
    monkeypatch.setattr("headrace.distributed.replicas.memory_bytes", lambda: 1000)
    assert replica.make_room(10**9), "there is no limit"
    replica.memory_limit = 1500
    assert replica.make_room(500) and step.bytes_to_plan(8, 16) == 0
    assert not replica.make_room(501) and step.bytes_to_plan(8, 16) > 0
    replica.network.zero_grad(set_to_none=True)
    assert accumulate(replica, batch, way)[0] == loss, "planned again"
    accumulate(replica, batch, Execution(8))
    assert step.bytes_to_plan(8, 16) > 0, "one way at a time"


@needs_library
def test_the_environment_masks_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in available_instructions():
        monkeypatch.setenv(MASK, name)
        assert instructions() == name
    monkeypatch.setenv(MASK, "of another machine")
    assert instructions() == available_instructions()[0], "what this machine cannot run is never used"
