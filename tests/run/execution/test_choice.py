"""How a run decides how to compute its steps: remembered, forgotten, asked again, chosen while it trains."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headrace.errors import UsageError
from headrace.machine.contention import ProcessorTime
from headrace.run.config import Config, Layers
from headrace.run.execution import choice as room
from headrace.run.execution import pace as pace_room
from headrace.run.execution.log import ExecutionLog
from headrace.run.execution.pace import JUDGED_STEPS, ChosenExecution, PaceCheck, remembered_execution
from headrace.run.pretraining import Pretraining
from headrace.training.autotune import Search
from headrace.training.loop import StepInfo
from tests.run import tiny_run
from tests.run.tiny_run import settings

OPEN = {
    "training.micro_batch_size": 0,
    "training.precision": "auto",
    "training.engine": "auto",
    "training.save_every": 100,
}
Command = Callable[..., tuple[int, str, str]]


def quiet_corpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ProcessorTime, "taken_percent_since", lambda *_: 0.0)
    return tiny_run.fresh_corpus(folder, monkeypatch)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a text; nothing is remembered yet, other programs are quiet, and the peak is known without measuring."""
    return quiet_corpus(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def folder_of_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, the run "one" that chose how to compute its steps, and what it remembered."""
    with pytest.MonkeyPatch.context() as patch:
        corpus = quiet_corpus(tmp_path_factory.mktemp("choice"), patch)
        finish(configured(corpus, "one", **{"training.max_steps": 40}))
    return corpus.parent


@pytest.fixture
def known_corpus(corpus: Path, folder_of_one: Path) -> Path:
    """Return a text on which the run "one" was trained, which remembered how it computed its steps."""
    shutil.copytree(folder_of_one, corpus.parent, symlinks=True, dirs_exist_ok=True)
    assert len(remembered_files(corpus)) == 1
    return corpus


def configured(corpus: Path, name: str, **changes: Any) -> Config:
    return tiny_run.configured(corpus, name, **{**OPEN, **changes})


def finish(config: Config) -> Pretraining:
    with Pretraining(config) as pretraining:
        list(pretraining.steps())
    return pretraining


def remembered_files(corpus: Path) -> list[Path]:
    return sorted((corpus.parent / "user-cache" / "executions").glob("*"))


def test_a_choice_is_made_while_training_and_remembered(corpus: Path) -> None:
    first = finish(configured(corpus, "one", **{"training.max_steps": 40}))
    log = ExecutionLog.read(corpus.parent / "one")
    assert 1 < len(log.steps) < 40
    assert list(log.steps) == list(range(1, len(log.steps) + 1)), "the way of every step of the choice is written down"
    assert all(sum(piece.rows for piece in pieces) == 4 for pieces in log.steps.values())
    assert log.final == first.computing.execution
    config = json.loads((corpus.parent / "one" / "config.json").read_text())["training"]
    assert config["micro_batch_size"] == first.computing.execution.micro_batch_size
    assert config["precision"] == first.computing.execution.precision
    assert len(remembered_files(corpus)) == 1

    second = finish(configured(corpus, "two"))
    assert second.computing.execution == first.computing.execution
    assert not (corpus.parent / "two" / "executions.json").exists()
    assert any("remembered from" in notice and "--measure-again" in notice for notice in second.notices)


def test_a_remembered_choice_is_used_wherever_the_text_lies(known_corpus: Path) -> None:
    """The counterpart of the tests below, each of which changes one thing about the same memory."""
    with Pretraining(configured(known_corpus, "two")) as other:
        assert other.computing.is_final
        assert other.computing.execution == ExecutionLog.read(known_corpus.parent / "one").final


@pytest.mark.parametrize(
    "change",
    [{"training.batch_size": 8}, {"model.d_model": 64}, {"training.max_length": 16}, {"run.measure_again": True}],
    ids=str,
)
def test_another_shape_or_asking_again_measures(known_corpus: Path, change: dict[str, Any]) -> None:
    with Pretraining(configured(known_corpus, "two", **change)) as other:
        assert not other.computing.is_final


def test_another_machine_or_other_ways_measure(known_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("headrace.machine.hardware.Hardware.fingerprint", "another")
        with Pretraining(configured(known_corpus, "two")) as moved:
            assert not moved.computing.is_final
    monkeypatch.setattr("headrace.training.autotune.alternatives", lambda plain, *_: [plain])
    with Pretraining(configured(known_corpus, "three")) as newer:
        assert newer.computing.notice == "", "nothing is remembered of this list of ways"


@pytest.mark.parametrize("content", ["", "{}", '{"execution": 3}', "[]", "\x00"], ids=repr)
def test_a_damaged_memory_is_ignored(known_corpus: Path, content: str) -> None:
    (path,) = remembered_files(known_corpus)
    path.write_text(content)
    with Pretraining(configured(known_corpus, "two")) as pretraining:
        assert not pretraining.computing.is_final


def test_a_remembered_choice_must_fit_the_memory(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "memory_limit", lambda *_: 1 << 40)
    finish(configured(corpus, "one", **{"training.max_steps": 60}))
    with Pretraining(configured(corpus, "two")) as pretraining:
        assert pretraining.computing.is_final
    monkeypatch.setattr(Search, "_held_bytes", lambda _: 1 << 41)
    with Pretraining(configured(corpus, "three")) as pretraining:
        assert not pretraining.computing.is_final


def test_a_budget_that_cannot_be_kept_is_refused_before_the_first_step(corpus: Path) -> None:
    tight = {"training.memory_budget": "10MB"}
    refused = pytest.raises(UsageError, match=r"memory_budget=10MB cannot be kept.*Use training.memory_budget=\d+MB")
    with Pretraining(configured(corpus, "one", **tight)) as pretraining, refused:
        list(pretraining.steps())
    assert not (corpus.parent / "one" / "checkpoints" / "last").exists()
    forced = finish(configured(corpus, "two", **tight, **{"run.force": True}))
    assert forced.run.steps == forced.max_steps
    (warning,) = (warning for warning in forced.run.warnings if "memory_budget" in warning)
    assert "more than training.memory_budget (10MB)" in warning, "never silent, and once"


def test_what_was_chosen_below_a_limit_is_checked_again_and_never_changed(corpus: Path) -> None:
    """What was chosen is checked against the budget of the day, and never changed."""
    roomy = {"training.memory_budget": "100GB", "training.max_steps": 50}
    with Pretraining(configured(corpus, "broken", **roomy)) as broken:
        for info in broken.steps():
            if info.step == 45:
                break
    tight = {**roomy, "run.resume": True, "training.memory_budget": "10MB"}
    with Pretraining(configured(corpus, "broken", **tight)) as resumed, pytest.raises(UsageError, match="10MB"):
        list(resumed.steps())
    again = finish(configured(corpus, "broken", **roomy, **{"run.resume": True}))
    assert again.computing.execution == broken.computing.execution


@pytest.mark.parametrize(("killed_after", "is_chosen"), [(3, False), (40, True)])
def test_a_run_killed_while_choosing_resumes_bit_identically(corpus: Path, killed_after: int, is_chosen: bool) -> None:
    """The checkpoint is of step 2, in the middle of the choice; the kill comes before or after its end."""
    whole, broken = corpus.parent / "whole", corpus.parent / "broken"
    rarely = {"training.evaluate_every": 1000, "training.save_every": 2, "training.max_steps": 44}
    with Pretraining(configured(corpus, "whole", **rarely)) as pretraining:
        for info in pretraining.steps():
            if info.step == 3:
                pretraining._saving.wait()
                shutil.copytree(whole, broken, symlinks=True)  # the checkpoint of step 2
            if info.step == killed_after:
                assert pretraining.computing.is_final == is_chosen
                for name in ("config.json", "executions.json", "metrics.jsonl"):
                    shutil.copy(whole / name, broken)  # what a kill leaves behind
    assert (broken / "checkpoints" / "last").resolve().name == "step-00000002"
    if not is_chosen:  # what the unbroken run did after the kill nobody could know: let it have been written down
        shutil.copy(whole / "executions.json", broken)
    layers = Layers()
    layers.add(json.loads((broken / "config.json").read_text()), "the run")
    layers.add({"run.out": str(broken), "run.resume": True}, "the test")
    resumed = finish(layers.build())
    assert resumed.computing.execution == pretraining.computing.execution
    assert ExecutionLog.read(broken) == ExecutionLog.read(whole)
    assert len(ExecutionLog.read(broken).steps) > 3
    left, right = (load_file(run / "checkpoints" / "last" / "model.safetensors") for run in (whole, broken))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_run_resumed_without_a_log_chooses_again(corpus: Path) -> None:
    stopped = configured(corpus, "one", **{"training.max_steps": 40})
    seen: list[int] = []
    with Pretraining(stopped, lambda: len(seen) >= 1) as pretraining:
        seen += [info.step for info in pretraining.steps()]
    (corpus.parent / "one" / "executions.json").write_text("damaged")
    layers = Layers()
    layers.add(json.loads((corpus.parent / "one" / "config.json").read_text()), "the run")
    layers.add({"run.out": str(corpus.parent / "one"), "run.resume": True}, "the test")
    assert finish(layers.build()).run.steps == 40


def step_of(seconds: float) -> StepInfo:
    return StepInfo(1, 0, 1.0, 1.0, 1.0, False, 0.0, seconds, 0.0, {"forward": seconds / 2, "backward": seconds / 2})


def test_a_choice_is_remembered_for_the_number_of_tokens_that_updates_compare(corpus: Path) -> None:
    config = configured(corpus, "one", **{"model.vocab_size": 4096})
    search = Search(config.model, config.training)
    remembered_execution(config, search).write(ChosenExecution.today(search.best, seconds_per_sequence=1.0))
    assert remembered_execution(config, search).read() is not None
    config.training.sampled_tokens = 64
    assert remembered_execution(config, search).read() is None


def test_a_choice_that_is_clearly_slower_than_remembered_is_forgotten(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(corpus, "one")
    search = Search(config.model, config.training)
    place = remembered_execution(config, search)
    chosen = ChosenExecution.today(search.best, seconds_per_sequence=1.0)

    def warnings(seconds: float) -> list[str | None]:
        place.write(chosen)
        check = PaceCheck(place, chosen, num_rows=4)
        return [check.add(step_of(4 * seconds)) for _ in range(JUDGED_STEPS + 3)]

    assert not any(warnings(1.2))
    assert place.read() == chosen
    said = [warning for warning in warnings(2.0) if warning]
    assert len(said) == 1, "it is said once"
    assert "2.0 times as long" in said[0]
    assert place.read() is None
    monkeypatch.setattr(pace_room.ProcessorTime, "taken_percent_since", lambda *_: 80.0)
    assert not any(warnings(2.0)), "other programs explain it"
    assert place.read() == chosen


def test_what_a_run_does_is_said_in_order(corpus: Path) -> None:
    said: list[str] = []
    with Pretraining(configured(corpus, "one", **{"data.tokenizer": "bpe:300"}), activity=said.append) as pretraining:
        assert said == [
            "reading the corpus",
            "training the tokenizer bpe:300",
            "building the network",
            "tokenising the first batch",
            "reading the validation text",
        ]
        list(pretraining.steps())
    assert {"measuring the peak", "evaluating", "saving"} <= set(said)


def test_the_command_says_what_it_does(command: Command, corpus: Path) -> None:
    values = settings(corpus, corpus.parent / "one", **{**OPEN, "data.cache_dir": str(corpus.parent / "own")})
    del values["data.sources"], values["run.out"]
    arguments = [f"{key}={value}" for key, value in values.items()]
    code, _, err = command("train", corpus, "--out", corpus.parent / "one", *arguments)
    assert code == 0
    lines = err.splitlines()
    assert lines.index("reading the corpus") < lines.index("building the network")
    assert lines.index("building the network") < lines.index("computing step 1")
    assert any("the first steps find the fastest way to compute" in line for line in lines)
