"""The training loop, a generator of steps that tests, benchmarks and the command line share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from headrace.distributed.group import ALONE, Group
from headrace.stages import Stage, update_seconds
from headrace.training.config import TrainingConfig
from headrace.training.evaluate import Evaluation
from headrace.training.health import Health, broken
from headrace.training.pauses import Due, EvaluationCosts, Pauses
from headrace.training.schedule import Limits, Position, learning_rate_factor
from headrace.training.showing.presentation import Presentation, TokenBatch
from headrace.training.showing.vocabulary import VocabularySampler
from headrace.training.showing.windows import DealtWindows
from headrace.training.step import StepResult, TrainStep


class StopWaiting(Exception):  # noqa: N818 - a request, not an error
    """A request to stop, raised by a stream of batches instead of waiting for the next one."""


@dataclass(frozen=True)
class Findings:
    """What an evaluation found out; in a group, rank 0 has it."""

    evaluation: Evaluation | None = None
    judged: Evaluation | None = None
    """Evaluation on the sample that all evaluations of the run are compared by."""
    text: str | None = None
    compared: Evaluation | None = None
    """The same for the weights as they were trained, where the model was calibrated."""


class Evaluating(Protocol):
    """What evaluates a run. All processes of a group call it together."""

    def measure(self, seconds: float) -> EvaluationCosts:
        """Measure in about this time what evaluating costs."""

    def calibrate(self, num_tokens: int) -> None:
        """Calibrate the network on a sample of this size; no update follows."""

    def evaluate(self, due: Due, judged_tokens: int) -> Findings:
        """Evaluate and write text as it is due; also on the sample of `judged_tokens`, where that is another."""


class Saving(Protocol):
    """What saves a run. All processes of a group call it together."""

    @property
    def written_s(self) -> float:
        """Seconds that writing the newest checkpoint took; 0: none was."""

    def begin(self, is_last: bool) -> None:
        """Start to write a checkpoint of the present weights; no update follows if it is the last."""

    def seal(self, is_best: bool) -> None:
        """Complete the checkpoint that was begun with the present position."""

    def check(self) -> None:
        """Raise the error of a save that has failed since."""

    def wait(self) -> None:
        """Wait until the newest checkpoint is in its place."""


@dataclass
class StepInfo:
    """Everything about one update; hooks take one of these."""

    step: int
    """Updates done so far."""
    tokens: int
    """Tokens trained on so far."""
    loss: float
    learning_rate: float
    gradient_norm: float
    is_skipped: bool
    """Whether the update was skipped because its loss or gradient was not finite."""
    elapsed_s: float
    """Training time so far, over all sessions of the run."""
    step_s: float
    """Time from the end of the step before it, evaluation and saving included."""
    progress: float
    """Share of the run that is done, by the limit that will end it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of the step by stage; of several processes, the longest data wait and rank 0's other stages."""
    mean_data_wait_s: float = 0.0
    """Data wait averaged over all processes."""
    evaluation: Evaluation | None = None
    judged: Evaluation | None = None
    """Evaluation on the sample that all evaluations of the run are compared by, of the weights as they were trained; in
    a group, rank 0 has it."""
    sample: str | None = None
    warning: str | None = None
    is_last: bool = False

    @property
    def update_s(self) -> float:
        """Return the time of the step without evaluation and saving."""
        return update_seconds(self.step_s, self.seconds)


class Loop:
    """The training loop over given batches, and a given way to take a step, to evaluate and to save.

    In a group, all processes run this loop in step: they stop, evaluate and save together, by rank 0's clock.
    """

    def __init__(
        self,
        config: TrainingConfig,
        limits: Limits,
        batches: DealtWindows,
        train_step: TrainStep,
        position: Position,
        evaluating: Evaluating,
        saving: Saving,
        should_stop: Callable[[], bool] = lambda: False,
        group: Group = ALONE,
        save_bytes: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        sampler: VocabularySampler | None = None,
    ) -> None:
        """`save_bytes`: size of a checkpoint, from which its cost is guessed before the first one.

        `sampler`: draws the tokens that each update compares; None: all are compared.
        """
        self._config = config
        self._limits = limits
        self._batches = batches
        self._train_step = train_step
        self.position = position
        self._evaluating = evaluating
        self._saving = saving
        self._should_stop = should_stop
        self._group = group
        self._clock, self._sampler = clock, sampler
        self.was_stopped = False
        self._health = Health()
        self._pauses = Pauses(config, limits, position, save_bytes)

    def steps(self) -> Iterator[StepInfo]:
        """Train until a limit is reached or somebody asks to stop; evaluate and save on the way and at the end."""
        position, limits = self.position, self._limits
        began = self._clock() - position.elapsed_s
        while not limits.is_over(position.step, position.elapsed_s, position.reserve_s):
            step_began = self._clock()
            self._saving.check()
            progress = limits.progress(position.step, position.elapsed_s, position.reserve_s)
            # The warm-up counts from the first step, whose learning rate would else be 0.
            factor = learning_rate_factor(self._config, max(progress, limits.progress(1, 0.0)))
            window = self._config.window_at(progress)
            asked = self._clock()
            try:
                batch, window = self._batches.next(window)
            except StopWaiting:
                self.was_stopped = True
                self._save_last()
                return
            waited_s = self._clock() - asked
            presentation = Presentation.at(self._config, window, position.step, self._group, batch, self._sampler)
            result = self._train_step(batch, factor, presentation)
            info = self._count(batch, result, waited_s, self._clock() - began)
            info.learning_rate = self._config.learning_rate * factor
            if self._between_steps(info, began):
                info.elapsed_s = position.elapsed_s
            info.step_s = self._clock() - step_began
            yield info
            if info.is_last:
                return

    def _count(self, batch: TokenBatch, result: StepResult, waited_s: float, elapsed_s: float) -> StepInfo:
        """Add an update to the position, with what all processes of the group did, and describe it."""
        position = self.position
        position.step += 1
        position.bad_steps += not result.is_finite
        warning = self._health.note(position.step, batch, result)
        mine = [float(batch.num_tokens), float(self._should_stop()), waited_s, elapsed_s]
        everyones = self._group.gather(mine, f"ending step {position.step}")
        num_tokens, stops, waits, clocks = zip(*everyones, strict=True)
        position.tokens += int(sum(num_tokens))
        position.elapsed_s = clocks[0]
        self._pauses.note_step()
        self.was_stopped = any(stops)
        progress = self._limits.progress(position.step, position.elapsed_s, position.reserve_s)
        return StepInfo(
            step=position.step,
            tokens=position.tokens,
            loss=result.loss,
            learning_rate=0.0,
            gradient_norm=result.gradient_norm,
            is_skipped=not result.is_finite,
            elapsed_s=position.elapsed_s,
            step_s=0.0,
            progress=progress,
            seconds={
                Stage.DATA_WAIT: max(waits),
                **result.seconds.by_stage(),
                Stage.EVALUATION: 0.0,
                Stage.SAVING: 0.0,
            },
            mean_data_wait_s=sum(waits) / len(waits),
            warning=warning,
            is_last=self.was_stopped or progress >= 1.0,
        )

    def measure_evaluation_again(self) -> None:
        """Measure what evaluating costs once more: it is computed in another way from now on."""
        self._pauses.forget_costs()

    def _between_steps(self, info: StepInfo, began: float) -> bool:
        """Measure, evaluate and save if it is due; return whether anything was (the same in all processes)."""
        paused = self._clock()
        is_end = info.is_last and not self.was_stopped
        is_measured = not self.was_stopped and self._pauses.needs_costs(is_end) and self._is_sound(info)
        if is_measured:
            costs = asdict(self._evaluating.measure(self._pauses.measuring_s))
            self._pauses.note_costs(EvaluationCosts(**self._group.from_main(costs, "waiting for rank 0 to measure")))
        due = Due(saves=True) if self.was_stopped else self._pauses.due_at_end() if is_end else self._pauses.due()
        if not due.is_anything and not is_measured:
            return False
        saving_s = self._evaluate_and_save(info, due, began) if due.is_anything else None
        is_saved, saving_s = saving_s is not None, saving_s or 0.0
        now = self._clock()
        mine = [now - began, now - paused - saving_s, saving_s, self._saving.written_s]
        doing = f"waiting for rank 0 to evaluate or save step {info.step}"
        self.position.elapsed_s, evaluation_s, saving_s, written_s = self._group.from_main(mine, doing)
        self._pauses.note_pause(due, is_saved, evaluation_s, saving_s, written_s)
        info.seconds |= {Stage.EVALUATION: evaluation_s, Stage.SAVING: saving_s}
        return True

    def _evaluate_and_save(self, info: StepInfo, due: Due, began: float) -> float | None:
        """Do what is due, if the weights are worth it; return the seconds that saving took, None if it was not done.

        What is saved anyway is written while the run is evaluated.
        """
        if not self._is_sound(info):
            return None
        if self._config.calibrate and info.is_last and due.tokens is not None:
            self._evaluating.calibrate(self._pauses.calibration_tokens)
        saving_began = self._clock()
        if due.saves:
            self._saving.begin(info.is_last)
        beginning_s = self._clock() - saving_began
        is_best = self._evaluate(info, due, began) if due.tokens is not None else False
        if not due.saves and not is_best:
            return None
        sealing_began = self._clock()
        if not due.saves:
            self._saving.begin(is_last=False)
        self._saving.seal(is_best)
        if info.is_last:
            self._saving.wait()
        return beginning_s + self._clock() - sealing_began

    def _is_sound(self, info: StepInfo) -> bool:
        """Return whether the weights are worth evaluating and saving; if not, what is saved already is better."""
        is_sound = self._health.is_sound(self._train_step)
        if info.is_last and not is_sound:
            raise broken(f"the weights after step {info.step} give no finite loss or gradient")
        return is_sound

    def _evaluate(self, info: StepInfo, due: Due, began: float) -> bool:
        """Evaluate; return whether the weights are the best so far and are to be saved as such."""
        assert due.tokens is not None
        position, judged_tokens = self.position, self._pauses.judged_tokens(due.tokens)
        # Longer windows than it has learned from so far would make a network look worse than it is.
        due = replace(due, window=self._config.window_at(info.progress))
        found = self._evaluating.evaluate(due, judged_tokens)
        info.evaluation, info.judged, info.sample = found.evaluation, found.compared or found.judged, found.text
        loss = found.judged.loss if found.judged else None
        is_lower = loss is not None and (position.best_loss is None or loss < position.best_loss)
        mine = [float(is_lower), loss or 0.0, self._clock() - began]
        is_best, best_loss, position.elapsed_s = self._group.from_main(mine, "waiting for rank 0 to evaluate")
        position.sample_tokens = judged_tokens
        if not is_best or not (due.saves or self._pauses.can_save_best):
            return False
        position.best_loss, position.best_step = best_loss, position.step
        return True

    def _save_last(self) -> None:
        self._saving.begin(is_last=True)
        self._saving.seal(is_best=False)
        self._saving.wait()
