"""A run that learns its text by heart says so once, early, and its best checkpoint is from before."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.result import plain_lines
from headrace.jobs.train import train
from headrace.report import report
from headrace.report.read import read_run
from headrace.run.config import Config, Layers
from headrace.run.pretraining import Pretraining
from headrace.run.records import Overfitting, Run
from headrace.run.saved_model import load_trained
from headrace.run.session.overfitting import OverfittingWatch, describe, remedies
from headrace.training.evaluate import Evaluation
from headrace.training.loop import StepInfo
from tests.run.tiny_run import settings

OVERFITTING = (2.0, 1.5, 1.4, 1.5, 1.6, 1.7)


def an_evaluation(number: int, loss: float, learning_rate: float = 0.003) -> StepInfo:
    evaluation = Evaluation(loss, 1.0, 10_000, 10_000)
    return StepInfo(
        100 * number, 10**5 * number, 1.0, learning_rate, 1.0, False, 10.0 * number, 0.1, 0.1 * number,
        evaluation=evaluation, judged=evaluation,
    )  # fmt: skip


def warnings_of(run: Run, config: Config, epoch_tokens: float | None, **values: Any) -> list[tuple[int, str]]:
    watch, told = OverfittingWatch(config, [], lambda: epoch_tokens), []
    for number, loss in enumerate(OVERFITTING, 1):
        run.smoothed_loss = 2.0 - 0.2 * number
        told += [(100 * number, text) for text in watch.follow(an_evaluation(number, loss, **values), run)]
    return told


def test_it_is_told_once_with_all_that_one_wants_to_know() -> None:
    run = Run(best_step=300)
    ((step, told),) = warnings_of(run, Config(), epoch_tokens=10**4)
    assert step == 500, "at the second evaluation above the lowest"
    assert told == (
        "validation loss has risen from 1.400 to 1.600 since step 300 (200 steps, 20s, 2 evaluations), while training"
        " loss fell from 1.400 to 1.000: the model is learning the text by heart, after 50 epochs. The learning rate"
        " has most of its fall to come, and validation often falls once more with it. The checkpoint of step 300 stays"
        " the best, which generate, serve and export use. What helps: more text, fewer epochs (training.num_epochs=30),"
        " dropout (training.dropout=0.2), a smaller network (model.num_layers=2)."
    )
    assert run.overfitting is not None
    assert (run.overfitting.best_step, run.overfitting.newest_step, run.compared_loss) == (300, 600, 1.7)


def test_late_in_the_decay_nothing_is_promised() -> None:
    ((_, told),) = warnings_of(Run(best_step=300), Config(), 10**4, learning_rate=0.0003)
    assert "learning rate" not in told


def test_text_that_has_not_come_round_cannot_be_known_by_heart() -> None:
    run = Run()
    ((_, told),) = warnings_of(run, Config(), epoch_tokens=10**6)
    assert "no text has come round yet" in told
    assert "by heart" not in told
    assert "What helps" not in told
    assert run.overfitting is not None
    assert remedies(run.overfitting, Config(), Path("run")) == []


def test_evaluations_of_an_earlier_mixture_do_not_count() -> None:
    config = Config.model_validate({"data": {"mixture_from": 401}})
    assert warnings_of(Run(), config, 10**4) == []


def test_a_run_that_goes_on_knows_what_was_before() -> None:
    config, run = Config(), Run(smoothed_loss=1.0)
    watch = OverfittingWatch(config, [], lambda: None)
    for number, loss in enumerate(OVERFITTING[:4], 1):
        run.smoothed_loss = 2.0 - 0.2 * number
        assert watch.follow(an_evaluation(number, loss), run) == []
    resumed, run.smoothed_loss = OverfittingWatch(config, watch._evaluations, lambda: None), 1.0
    (told,) = resumed.follow(an_evaluation(5, OVERFITTING[4]), run)
    assert "after" not in told, "how many epochs is not known"


@pytest.mark.parametrize("name", ["run", "it's a run"])
def test_commands_can_be_copied(name: str) -> None:
    values = {"best_step": 10, "best_loss": 1.0, "best_training_loss": 1.0, "best_epochs": 0.123}
    values |= {"newest_step": 30, "newest_loss": 2.0, "newest_training_loss": 0.5, "newest_epochs": 1.4}
    found = Overfitting.model_validate({**values, "evaluations": 2, "seconds": 4.0})
    config = Config.model_validate({"run": {"resume": True}})
    lines = [shlex.split(line) for _, line in remedies(found, config, Path(name))]
    beginning, end = ["headrace", "train", f"{name}/config.json"], ["run.resume=false", "--out"]
    assert lines == [
        [*beginning, "training.num_epochs=0.12", *end, f"{name}-shorter"],
        [*beginning, "training.dropout=0.2", *end, f"{name}-dropout"],
        [*beginning, "model.num_layers=2", *end, f"{name}-smaller"],
    ]
    one_layer = Config.model_validate({"model": {"num_layers": 1}, "training": {"dropout": 0.1}})
    assert len(remedies(found, one_layer, Path(name))) == 1
    assert "20 steps" in describe(found)


def test_a_small_run_that_overfits(tmp_path: Path) -> None:
    """Text without any pattern: all that can be learned of it is by heart."""
    rng = random.Random(0)
    (tmp_path / "corpus.txt").write_text("".join(rng.choice("abcdefgh \n") for _ in range(1500)))
    values = settings(
        tmp_path / "corpus.txt", tmp_path / "run",
        **{
            "model.d_model": 128, "training.learning_rate": 0.01, "training.batch_size": 8, "training.max_steps": 105,
            "training.evaluate_every": 15, "training.micro_batch_size": 8, "data.validation_fraction": 0.3,
            "training.prompts": ["a"], "training.decay": 0.1, "training.weight_decay": 0.1, "training.dropout": 0,
        },
    )  # fmt: skip
    layers = Layers()
    layers.add(values, "the test")
    told: list[int] = []
    with Pretraining(layers.build()) as pretraining:
        for info in pretraining.steps():
            told += [info.step] * (len(pretraining.run.warnings) - len(told))
    run = pretraining.run
    assert len(told) == 1
    assert told[0] < 105, "early"
    assert "by heart" in run.warnings[0]
    saved = Run.model_validate(json.loads((tmp_path / "run" / "summary.json").read_text()))
    assert saved.overfitting == run.overfitting is not None
    assert saved.warnings == run.warnings
    assert run.best_step is not None
    assert run.best_step < told[0]
    assert load_trained(tmp_path / "run").num_steps == run.best_step, "what generate and export use"
    assert load_trained(tmp_path / "run" / "checkpoints" / "last").num_steps == 105
    lines = plain_lines(run, pretraining.config)
    assert f"best_step={run.best_step}" in lines
    (shorter,) = [line.removeprefix("next=") for line in lines if "num_epochs" in line]
    assert shorter in report([tmp_path / "run"], markdown=True)
    assert read_run(tmp_path / "run").best_step == run.best_step
    words = shlex.split(shorter)
    setting = next(word for word in words if word.startswith("training.num_epochs="))
    again = {**values, "run.out": words[-1], "training.num_epochs": float(setting.partition("=")[2])}
    assert train(**again).steps < 105, "what is recommended works"
