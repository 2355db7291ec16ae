"""Evaluations and saves keep to their share of a run, whatever its length; by a clock that only they advance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headrace.stages import Stage
from headrace.training.config import TrainingConfig
from headrace.training.evaluate import Evaluation
from headrace.training.loop import Findings, Loop, StepInfo
from headrace.training.pauses import CALIBRATING_EVALUATIONS, Due, EvaluationCosts, Pauses
from headrace.training.schedule import Limits, Position, learning_rate_factor
from headrace.training.showing.windows import BatchStream, DealtWindows
from headrace.training.step import StepResult, StepSeconds, TrainStep
from tests.training.tiny import random_batch


@dataclass
class World:
    """A machine whose clock stands still but for what is said to take time here."""

    step_s: float = 1.0
    token_s: float = 1e-4
    part_tokens: int | None = 1_000_000
    text_s: float = 2.0
    copy_s: float = 0.1
    write_s: float = 1.0
    now_s: float = 0.0
    losses: list[float] = field(default_factory=list)
    """Losses of the coming evaluations; the last one stays."""
    evaluated: list[tuple[int, int]] = field(default_factory=list)
    """Tokens of each evaluation, and of the sample by which it is judged."""
    windows: list[int] = field(default_factory=list)
    """Tokens of the windows of each evaluation."""
    calibrated: list[int] = field(default_factory=list)
    """Tokens that the network was calibrated on."""
    texts: int = 0
    text_seconds: float = 0.0
    saved: list[tuple[int, bool]] = field(default_factory=list)
    """Steps that were saved, and whether as the best."""
    written_s: float = 0.0
    writing_until_s: float = 0.0

    # A batch, and an update

    def __next__(self) -> Any:
        return random_batch()

    def state(self) -> dict[str, Any]:
        return {}

    def __call__(self, batch: Any, factor: float, shown: Any) -> StepResult:
        self.now_s += self.step_s
        return StepResult(1.0, 1.0, True, StepSeconds(0.5, 0.5))

    def is_sound(self, batch: Any) -> bool:
        return True

    # Evaluating

    def measure(self, seconds: float) -> EvaluationCosts:
        self.now_s += seconds
        return EvaluationCosts(self.token_s, self.part_tokens, self.text_s)

    def calibrate(self, num_tokens: int) -> None:
        self.calibrated.append(num_tokens)
        self.now_s += CALIBRATING_EVALUATIONS * self.token_s * min(num_tokens, self.part_tokens or num_tokens)

    def evaluate(self, due: Due, judged_tokens: int) -> Findings:
        assert due.tokens is not None
        for tokens in {due.tokens, judged_tokens}:
            part_tokens = self.part_tokens or 10_000_000
            self.now_s += self.token_s * min(tokens or part_tokens, part_tokens)
        self.texts += due.text_s > 0
        self.text_seconds += min(due.text_s, self.text_s)
        self.now_s += min(due.text_s, self.text_s)
        self.evaluated.append((due.tokens, judged_tokens))
        self.windows.append(due.window)
        loss = self.losses.pop(0) if len(self.losses) > 1 else (self.losses or [1.0])[0]
        evaluation = Evaluation(loss, 1.0, due.tokens, 1, is_whole=not due.tokens)
        return Findings(evaluation, evaluation, "text")

    # Saving

    def begin(self, is_last: bool) -> None:
        self.wait()
        self.now_s += 0.0 if is_last else self.copy_s
        self.writing_until_s = self.now_s + self.write_s

    def seal(self, is_best: bool) -> None:
        self.saved.append((self.loop.position.step, is_best))

    def check(self) -> None:
        pass

    def wait(self) -> None:
        self.now_s = max(self.now_s, self.writing_until_s)
        self.written_s = self.write_s if self.writing_until_s else 0.0

    def run(self, position: Position | None = None, **settings: Any) -> list[StepInfo]:
        training = TrainingConfig(**settings)
        limits = Limits.from_config(training, 1000)
        self.loop = Loop(
            training, limits, DealtWindows(cast(BatchStream, self)), cast(TrainStep, self), position or Position(),
            self, self, save_bytes=10_000_000, clock=lambda: self.now_s,
        )  # fmt: skip
        return list(self.loop.steps())


def seconds_of(infos: list[StepInfo], stage: Stage) -> list[float]:
    return [info.seconds[stage] for info in infos]


@pytest.mark.parametrize("steps", [1, 2, 5, 30, 300, 3000])
@pytest.mark.parametrize("token_s", [1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("part_tokens", [1_000, 1_000_000, None])
def test_evaluations_keep_to_their_share(steps: int, token_s: float, part_tokens: int | None) -> None:
    world = World(token_s=token_s, part_tokens=part_tokens)
    infos = world.run(max_steps=steps)
    evaluating_s = seconds_of(infos, Stage.EVALUATION)
    total_s = infos[-1].elapsed_s
    assert sum(evaluating_s[:-1]) <= 0.03 * total_s
    assert evaluating_s[-1] <= 0.1 * total_s + token_s
    if world.evaluated[-1][0]:
        assert sum(evaluating_s) <= 0.05 * total_s + token_s, "all together, where the last one is a sample"
    assert infos[-1].evaluation is not None


def test_evaluations_are_in_windows_as_long_as_those_of_training() -> None:
    world = World()
    world.run(max_steps=100, evaluate_every=20, max_length=256, short_windows=64)
    assert world.windows == [64, 64, 128, 0, 0]


def test_the_sample_is_the_same_for_the_whole_run_and_the_last_one_is_the_whole_part() -> None:
    world = World(part_tokens=100_000, token_s=1e-4)
    infos = world.run(max_steps=500)
    tokens = [tokens for tokens, _ in world.evaluated]
    assert len(tokens) > 3
    assert len(set(tokens[:-1])) == 1
    assert 10_000 <= tokens[0] <= 11_000
    assert world.evaluated[-1] == (0, tokens[0]), "judged by the sample that the others were judged by"
    assert infos[-1].evaluation is not None and infos[-1].evaluation.is_whole


def test_where_the_whole_part_takes_too_long_the_last_sample_is_as_large_as_its_share() -> None:
    world = World(part_tokens=10_000_000, token_s=1e-4)
    infos = world.run(max_steps=500)
    last, judged = world.evaluated[-1]
    assert judged == world.evaluated[0][0], "the best is judged by the sample of the others"
    assert last > 5 * judged
    assert 0.02 <= infos[-1].seconds[Stage.EVALUATION] / infos[-1].elapsed_s <= 0.027, "with its text"


def test_while_the_part_is_being_tokenised_the_last_evaluation_is_on_the_sample() -> None:
    world = World(part_tokens=None, token_s=1e-4)
    world.run(max_steps=500)
    assert len({tokens for tokens, _ in world.evaluated}) == 1


def test_evaluating_is_measured_again_when_it_is_computed_otherwise() -> None:
    pauses = Pauses(TrainingConfig(max_steps=100), Limits(100, None), Position())
    for _ in range(3):
        assert not pauses.needs_costs(is_end=False)
        pauses.note_step()
    assert pauses.needs_costs(is_end=False)
    pauses.note_costs(EvaluationCosts(1e-4, 1000))
    assert not pauses.needs_costs(is_end=False)
    pauses.forget_costs()
    assert pauses.needs_costs(is_end=False)


def test_the_best_is_judged_on_the_sample_also_after_a_resume() -> None:
    world = World(part_tokens=100_000, losses=[3.0, 2.0, 2.5, 2.2])
    world.run(max_steps=500)
    position = world.loop.position
    assert (position.best_loss, position.sample_tokens) == (2.0, world.evaluated[0][0])
    assert [is_best for _, is_best in world.saved if is_best] == [True, True]
    again = World(part_tokens=100_000, losses=[1.9])
    again.run(position, max_steps=1500)
    assert {judged for _, judged in again.evaluated} == {world.evaluated[0][0]}


def test_settings_are_obeyed() -> None:
    world = World(token_s=1e-2)
    infos = world.run(max_steps=20, evaluate_every=4, save_every=5, evaluation_tokens=700)
    assert [info.step for info in infos if info.evaluation] == [4, 8, 12, 16, 20]
    assert {tokens for tokens, _ in world.evaluated} == {700}
    assert world.texts == 5
    assert {5, 10, 15, 20} <= {step for step, _ in world.saved}
    whole = World(token_s=1e-2)
    whole.run(max_steps=20, evaluation_tokens=0)
    assert {tokens for tokens, _ in whole.evaluated} == {0}


def test_a_run_is_calibrated_at_its_end_on_the_sample_of_its_evaluations() -> None:
    world = World(part_tokens=100_000)
    world.run(max_steps=500, calibrate=True)
    assert world.calibrated == [world.evaluated[0][1]]
    large = World(token_s=1e-6)
    large.run(max_steps=20, evaluation_tokens=0, calibrate=True)
    assert large.calibrated == [50_000], "the whole part would be too much"


def test_text_that_is_not_cheap_is_cut_to_a_share_of_the_run() -> None:
    dear, cheap, short = World(text_s=20.0), World(text_s=0.01), World(text_s=20.0)
    dear.run(max_steps=2000)
    cheap.run(max_steps=2000)
    short.run(max_steps=20)
    assert dear.texts == len(dear.evaluated) > 3
    assert dear.text_seconds <= 0.011 * dear.now_s
    assert cheap.texts == len(cheap.evaluated) > 3
    assert short.texts == 1, "a few words would say nothing"


@pytest.mark.parametrize("steps", [10, 60, 600, 6000])
def test_waiting_for_saves_keeps_to_its_share(steps: int) -> None:
    world = World(copy_s=0.2, write_s=2.0)
    infos = world.run(max_steps=steps)
    assert sum(seconds_of(infos, Stage.SAVING)[:-1]) <= 0.01 * infos[-1].elapsed_s
    assert world.saved[-1][0] == steps
    assert len(world.saved) == 1 or steps > 30, "a short run is saved once, at the end"
    assert len(world.saved) >= steps // 120


def test_the_last_save_is_written_while_the_run_is_evaluated() -> None:
    infos = World(write_s=0.5, token_s=1e-4, part_tokens=50_000).run(max_steps=100)
    assert infos[-1].seconds[Stage.EVALUATION] > 4
    assert infos[-1].seconds[Stage.SAVING] == 0


@pytest.mark.parametrize("minutes", [0.2, 1.0, 10.0])
@pytest.mark.parametrize("part_tokens", [20_000, 1_000_000])
@pytest.mark.parametrize("calibrates", [False, True])
def test_a_time_limit_has_the_last_evaluation_and_save_in_it(
    minutes: float, part_tokens: int, calibrates: bool
) -> None:
    world = World(step_s=0.25, part_tokens=part_tokens, write_s=0.3)
    infos = world.run(max_minutes=minutes, calibrate=calibrates)
    assert infos[-1].elapsed_s == pytest.approx(60 * minutes, abs=0.25)
    final = TrainingConfig(max_minutes=minutes)
    lowest = final.learning_rate * learning_rate_factor(final, 1.0)
    assert infos[-1].learning_rate < lowest + 0.1 * final.learning_rate, "the decay ends with the updates"
    position = world.loop.position
    assert Limits(None, 60 * minutes).is_over(position.step, position.elapsed_s, position.reserve_s)
