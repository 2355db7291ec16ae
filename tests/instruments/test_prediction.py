"""Plans: what they add up to, and what they say of a config that cannot fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.data.prepare import prepare
from headrace.instruments import prediction
from headrace.instruments import rehearsal as rehearse
from headrace.instruments.known_corpus import complete_from_corpus
from headrace.instruments.prediction_worker import predict_apart
from headrace.instruments.rehearsal import _quick_depths
from headrace.machine.measure import Measurements
from headrace.models.counts import count
from headrace.native.library import why_missing
from headrace.perf.memory import MemoryParts
from headrace.perf.predict import ByLayers, Footprint, Rehearsal, find_bound
from headrace.run import machine as machine_room
from headrace.run.config import Config, Layers
from tests.conftest import make_text

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that need not be measured."""
    rates = Measurements({"float32": {1: 1e11}, "bfloat16": {1: 1e11}}, 1e10, None, 1e9, busy_cores=0.0)
    monkeypatch.setattr(machine_room, "measure", lambda *_: rates)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def tiny(tmp_path: Path, **changes: Any) -> Config:
    (tmp_path / "corpus.txt").write_text(make_text(20_000))
    values: dict[str, Any] = {
        "model.d_model": 32, "model.num_layers": 5, "training.max_length": 32, "training.batch_size": 8,
        "training.max_steps": 50, "training.threads": 1, "training.precision": "float32",
        "data.sources": [str(tmp_path / "corpus.txt")], "data.tokenizer": "byte",
    }  # fmt: skip
    layers = Layers()
    layers.add({**values, **changes}, "test")
    return layers.build()


def test_times_are_extended_along_layers() -> None:
    rehearsal = Rehearsal(2, passes=ByLayers({1: 0.3, 3: 0.5}), update=ByLayers({6: 0.7}))
    seconds = rehearsal.step_seconds(num_layers=6, batch_size=8)
    assert seconds["forward and backward"] == pytest.approx((0.5 + 3 * 0.1) * 8 / 2)
    assert seconds["optimizer"] == 0.7, "measured, not extended"
    noisy = ByLayers({0: 0.5, 3: 0.4})
    assert noisy.at(6) == 0.4, "a layer more never takes less"


@pytest.mark.parametrize(("num_layers", "depths"), [(1, [1]), (2, [2]), (5, [5]), (13, [0, 3])])
def test_all_layers_are_timed_where_that_is_quick(num_layers: int, depths: list[int]) -> None:
    assert _quick_depths(num_layers, num_layers, lambda depth: depth * 1e10) == depths
    assert _quick_depths(num_layers, num_layers, lambda depth: depth * 1e13) == ([1] if num_layers == 1 else [0, 1])
    assert _quick_depths(3, num_layers + 3, lambda depth: 0.0) == [0, 3], "no more than were built"


@pytest.mark.parametrize(
    ("flops", "traffic", "name"), [(1e12, 1e9, "compute"), (1e9, 9e10, "memory"), (1e9, 1e9, "overhead")]
)
def test_what_bounds_a_step(flops: float, traffic: float, name: str) -> None:
    assert find_bound(flops, traffic, 10.0, 1e11, 1e10).name == name
    assert find_bound(flops, traffic, 10.0, None, 1e10).name == "unknown"


def test_a_plan_adds_up(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    plan = prediction.predict_run(config)
    assert config.model.vocab_size == 0, "the caller's config is left alone"
    assert plan.fits
    assert plan.work.counts.num_parameters == plan.as_json()["parameters"]
    assert plan.memory.weights == 4 * plan.work.counts.num_parameters
    assert plan.step_s is not None
    assert plan.tokens_per_second == pytest.approx(8 * 32 / plan.step_s)
    assert plan.total_steps == 50
    assert plan.evaluation_s is not None and plan.evaluation_s > 0
    assert 50 * plan.step_s < plan.total_s < 1.13 * 50 * plan.step_s, "evaluations keep to their share"
    assert plan.data_s is None, "not tokenised yet"
    assert plan.corpus_tokens == plan.corpus_bytes
    assert any("not tokenised yet" in text for text in plan.assumptions)


def test_evaluations_take_the_time_of_all_tokens_where_updates_compare_some(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    config.model.vocab_size = 8192
    sequence_length = config.training.sequence_length
    seconds = [
        prediction._evaluation_seconds(
            config, {"forward and backward": 3.0}, count(config.model, sequence_length, logits), 10**6
        )
        for logits in (None, 1024)
    ]
    assert seconds[0][1] == pytest.approx(1.0 * 10**6 / config.training.tokens_per_update)
    assert seconds[1][1] > 2 * seconds[0][1]


def test_the_text_to_evaluate_on_is_a_share_of_the_corpus_or_its_own_files(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    assert complete_from_corpus(config, []).validation_tokens == pytest.approx(0.05 * 20_000, rel=0.01)
    (tmp_path / "validation.txt").write_text(make_text(5_000))
    config.data.validation_sources = [str(tmp_path / "validation.txt")]
    assert complete_from_corpus(config, []).validation_tokens == pytest.approx(5_000, rel=0.01)
    config.data.tokenizer, config.model.vocab_size = "bpe:300", 0
    prepare(config.data.sources, "bpe:300")
    validated = complete_from_corpus(config, [])
    assert validated.validation_tokens == pytest.approx(5_000 * validated.tokens / validated.num_bytes, rel=0.01)
    assert validated.tokens < 0.9 * validated.num_bytes


def test_what_is_chosen_for_a_time_limit_is_said_and_a_small_text_ends_before_it(tmp_path: Path) -> None:
    given = tiny(tmp_path).data.sources
    layers = Layers()
    layers.add({"data.sources": given, "training.max_minutes": 30, "training.threads": 1}, "test")
    plan = prediction.predict_run(layers.build())
    said = " ".join(plan.assumptions)
    assert "chosen for 30m" in said and "the recipe for many epochs" in said
    assert plan.total_s is not None and plan.total_s < 30 * 60


def test_a_run_that_waits_for_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path, **{"data.cache_dir": str(tmp_path / "tokens"), "training.evaluate_every": 5})
    prepare([tmp_path / "corpus.txt"], "byte", tmp_path / "tokens")
    fast = prediction.predict_run(config)
    assert fast.data_s is not None and fast.step_s is not None and fast.evaluation_s is not None
    assert fast.bound.name != "data"
    assert fast.total_s == pytest.approx(50 * fast.step_s + 10 * fast.evaluation_s)
    monkeypatch.setattr(prediction, "time_loader", lambda *_: 60.0)
    slow = prediction.predict_run(config)
    assert slow.bound.name == "data"
    assert slow.step_s == 60.0


def test_what_the_prediction_does_without_is_said(tmp_path: Path) -> None:
    asked = {"training.memory_budget": "1GB", "training.compile": True, "run.processes": 2}
    said = " ".join(prediction.predict_run(tiny(tmp_path, **asked)).assumptions)
    expected = ("memory_budget", "micro-batches and gradient checkpointing", "compile", "headrace scale")
    assert all(words in said for words in expected), said


def test_the_first_limit_counts(tmp_path: Path) -> None:
    plan = prediction.predict_run(tiny(tmp_path, **{"training.max_minutes": 1e-6}))
    assert plan.total_s == pytest.approx(6e-5)
    assert plan.total_steps == 1
    plan = prediction.predict_run(tiny(tmp_path, **{"training.max_steps": 0, "training.num_epochs": 0}))
    assert plan.total_s == pytest.approx(60 * prediction.DEFAULT_MINUTES)


def test_a_config_that_cannot_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path, **{"training.micro_batch_size": 8})
    rehearsal = Rehearsal(8, ByLayers({5: 0.1}), ByLayers({5: 0.1}))
    footprint = Footprint(runtime_bytes=10**8, activation_bytes_per_token=15_000.0, grown_bytes=10**8)
    monkeypatch.setattr(prediction, "rehearse", lambda *_: (rehearsal, footprint))
    monkeypatch.setattr(prediction, "memory_bytes", lambda: 10**8)
    monkeypatch.setattr(prediction, "available_memory_bytes", lambda: 10**9)
    fitting = prediction.predict_run(config)
    assert fitting.fits
    assert fitting.memory.total == 2 * 10**8 + prediction.LEFT_BEHIND_BYTES + fitting.memory.loader

    monkeypatch.setattr(prediction, "LARGEST_REHEARSAL", 1e9)
    monkeypatch.setattr(prediction, "available_memory_bytes", lambda: fitting.memory.total - 10**8 - 1000)
    plan = prediction.predict_run(config)
    assert not plan.fits
    assert plan.headroom_bytes == -1000
    assert plan.remedies[0].startswith("training.micro_batch_size=1 needs")
    monkeypatch.setattr(prediction, "available_memory_bytes", lambda: 1000)
    assert "no number of layers fits" in prediction.predict_run(config).remedies[-1]


@pytest.mark.parametrize(
    "engine", ["torch", pytest.param("native", marks=pytest.mark.skipif(bool(why_missing()), reason=why_missing()))]
)
def test_what_is_too_large_to_rehearse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    config = tiny(tmp_path, **{"training.engine": engine})
    with monkeypatch.context() as patch:
        patch.setattr(prediction, "count_memory", lambda *_, **__: MemoryParts(1, 0, 1, 1, 1, 1, 1, 1, 1 << 60))
        few = prediction.predict_run(config)
    assert few.tokens_per_second
    assert any("too large to rehearse whole" in text for text in few.assumptions)
    whole = prediction.predict_run(config)
    monkeypatch.setattr(prediction, "rehearse", prediction.rehearse_few_layers)
    extended = prediction.predict_run(config)
    assert extended.memory.activations == pytest.approx(whole.memory.activations, rel=0.1)
    monkeypatch.setattr(prediction, "LARGEST_REHEARSAL", 0.0)
    unknown = prediction.predict_run(config)
    assert unknown.tokens_per_second is None
    assert unknown.bound.name == "unknown"
    assert unknown.memory.activations > 0


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_rehearsal_takes_at_least_what_is_held(tmp_path: Path, precision: str, optimizer: str) -> None:
    config = tiny(tmp_path, **{"training.precision": precision, "training.optimizer": optimizer, "model.d_model": 128})
    prediction.complete_from_corpus(config, [])
    execution = prediction.quick_execution(config.model, config.training)
    assert execution.precision == precision
    rehearsal, footprint = prediction.rehearse(config.model, config.training, execution)
    assert all(seconds > 0 for seconds in rehearsal.step_seconds(5, 8).values())
    assert footprint.grown_bytes is not None
    assert footprint.activation_bytes_per_token > 0


def test_a_build_without_onednn_is_rehearsed_with_its_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearse, "has_onednn", lambda: False)
    assert prediction.predict_run(tiny(tmp_path, **{"training.matmul": "default"})).tokens_per_second


def test_the_command_on_what_does_not_fit(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(tmp_path)
    monkeypatch.setattr(prediction, "LARGEST_REHEARSAL", 0.0)
    monkeypatch.setattr(prediction, "available_memory_bytes", lambda: 1000)
    monkeypatch.setattr(prediction, "memory_bytes", lambda: 1000)
    code, out, _ = command("plan", tmp_path / "corpus.txt", "training.micro_batch_size=16")
    assert code == 0
    assert "does not fit" in out
    assert "try: training.micro_batch_size=1 needs" in out


def test_the_command(command: Command, tmp_path: Path) -> None:
    tiny(tmp_path)
    options = ("training.threads=1", "training.max_length=32", "model.d_model=32", "training.precision=float32")
    code, out, _ = command("plan", tmp_path / "corpus.txt", *options, "--json")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert result["fits"] is True
    assert result["tokens_per_second"] > 0
    config = Config()
    config.model.d_model, config.model.vocab_size = 32, 4096
    assert result["parameters"] == count(config.model, 32).num_parameters
    assert "predicted" in out
    assert "bound by" in out


def test_several_configs_are_compared_side_by_side(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(tmp_path)
    monkeypatch.setattr(
        "headrace.cli.commands.plan.plan_apart", lambda config: prediction.predict_run(config).as_json()
    )
    for name, width in (("a", 32), ("b", 64)):
        text = (
            f"model: {{d_model: {width}, num_layers: 1}}\ntraining: {{threads: 1, max_length: 32, precision: float32}}"
        )
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    code, out, err = command("plan", "a.yaml", "b.yaml", "data.tokenizer=byte", "data.sources=[corpus.txt]", "--json")
    assert code == 0, err
    *shown, last = out.splitlines()
    assert shown[0].startswith("fastest: ")
    assert "all fit in memory" in shown[0]
    rows = {line[:16].strip(): line[16:].split() for line in shown}
    assert rows["model.d_model"] == ["32", "64"]
    assert rows["fits"] == ["yes", "yes"]
    assert "training.threads" not in rows, "only what differs"
    assert max(map(len, shown)) <= 80
    a, b = json.loads(last)["plans"]
    assert (a["config"], b["config"]) == ("a.yaml", "b.yaml")
    assert a["parameters"] < b["parameters"]


def test_a_plan_in_a_process_of_its_own(tmp_path: Path) -> None:
    config = tiny(tmp_path, **{"model.num_layers": 1})
    here = prediction.predict_run(config).as_json()  # first, so that the machine is remembered
    there = predict_apart(config)
    assert there.keys() == here.keys()
    assert there["parameters"] == here["parameters"]
