"""The training loop, a generator of steps that tests, benchmarks and the command line share."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.distributed.group import ALONE, Group
from headrace.errors import TrainingError
from headrace.stages import Stage, update_seconds
from headrace.training.config import TrainingConfig
from headrace.training.evaluate import Evaluation
from headrace.training.schedule import Limits, learning_rate_factor
from headrace.training.step import StepResult, TokenBatch, TrainStep

MAX_BAD_STEPS = 5  # skipped updates in a row that end a run
MAX_BAD_RECENTLY, RECENT_STEPS = 10, 50  # skipped updates among the newest ones that end a run
JUMP = 10.0  # a loss this many times the mean of those before it is a sign that training has failed


class StopWaiting(Exception):  # noqa: N818 - a request, not an error
    """A request to stop, raised by a stream of batches instead of waiting for the next one."""


class BatchStream(Protocol):
    """An endless stream of batches that knows its place; the data engine's `Loader` is one."""

    def __next__(self) -> TokenBatch: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


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
    progress: float
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of the step by stage; of several processes, the longest data wait and rank 0's other stages."""
    mean_data_wait_s: float = 0.0
    """Data wait averaged over all processes."""
    evaluation: Evaluation | None = None
    sample: str | None = None
    warning: str | None = None
    is_last: bool = False

    @property
    def update_s(self) -> float:
        """Return the time of the step without evaluation and saving."""
        return update_seconds(self.step_s, self.seconds)


@dataclass
class Position:
    """The position of a run, which is saved with every checkpoint."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    bad_steps: int = 0
    """Updates that were skipped because they were not finite."""
    best_loss: float | None = None


class Loop:
    """The wiring of batches, steps, evaluation and saving, whatever these are.

    In a group, all processes run this loop in step: they stop, evaluate and save together, by rank 0's clock.
    """

    def __init__(
        self,
        config: TrainingConfig,
        limits: Limits,
        batches: BatchStream,
        train_step: TrainStep,
        position: Position,
        evaluate: Callable[[], tuple[Evaluation | None, str]],
        save: Callable[[bool], None],
        should_stop: Callable[[], bool] = lambda: False,
        group: Group = ALONE,
    ) -> None:
        self._config = config
        self._limits = limits
        self._batches = batches
        self._train_step = train_step
        self.position = position
        self._evaluate = evaluate
        self._save = save
        self._should_stop = should_stop
        self._group = group
        self.was_stopped = False
        self._health = _Health()

    def steps(self) -> Iterator[StepInfo]:
        """Train until a limit is reached or somebody asks to stop; evaluate and save on the way and at the end."""
        position = self.position
        resumed_s = position.elapsed_s
        began = time.perf_counter()
        while not self._limits.is_over(position.step, position.elapsed_s):
            step_began = time.perf_counter()
            progress = self._limits.progress(position.step, position.elapsed_s)
            factor = learning_rate_factor(self._config, max(progress, self._limits.progress(1, 0.0)))
            try:
                batch = next(self._batches)
            except StopWaiting:
                self.was_stopped = True
                self._save(False)
                return
            waited = time.perf_counter() - step_began
            result = self._train_step(batch, factor)
            position.step += 1
            position.bad_steps += not result.is_finite
            warning = self._health.note(position.step, batch, result)
            elapsed_s = resumed_s + time.perf_counter() - began
            mine = [float(batch.num_tokens), float(self._should_stop()), waited, elapsed_s]
            everyones = self._group.gather(mine, f"ending step {position.step}")
            num_tokens, stops, waits, clocks = zip(*everyones, strict=True)
            position.tokens += int(sum(num_tokens))
            position.elapsed_s = clocks[0]
            self.was_stopped = any(stops)
            is_last = self.was_stopped or self._limits.is_over(position.step, position.elapsed_s)
            info = StepInfo(
                step=position.step,
                tokens=position.tokens,
                loss=result.loss,
                learning_rate=self._config.learning_rate * factor,
                gradient_norm=result.gradient_norm,
                is_skipped=not result.is_finite,
                elapsed_s=position.elapsed_s,
                step_s=0.0,
                progress=self._limits.progress(position.step, position.elapsed_s),
                seconds={Stage.DATA_WAIT: max(waits), **result.seconds.by_stage()},
                mean_data_wait_s=sum(waits) / len(waits),
                warning=warning,
                is_last=is_last,
            )
            if self._between_steps(info, progress):
                elapsed_s = resumed_s + time.perf_counter() - began
                doing = f"waiting for rank 0 to evaluate or save step {position.step}"
                position.elapsed_s = info.elapsed_s = self._group.from_main(elapsed_s, doing)
            info.step_s = time.perf_counter() - step_began
            yield info
            if info.is_last:
                return

    def _between_steps(self, info: StepInfo, progress_before: float) -> bool:
        """Evaluate and save when it is time; return whether it was, which all processes know."""
        config, position = self._config, self.position
        began = time.perf_counter()
        is_finished = info.is_last and not self.was_stopped
        is_evaluated = is_finished or _is_due(config.evaluate_every, info.step, progress_before, info.progress)
        is_saved = _is_due(config.save_every, info.step, progress_before, info.progress)
        info.seconds |= {Stage.EVALUATION: 0.0, Stage.SAVING: 0.0}
        if not (is_evaluated or is_saved or info.is_last):
            return False
        if not self._health.is_sound(self._train_step):  # what is there already is better
            if info.is_last:
                raise _broken(f"the weights after step {info.step} give no finite loss or gradient")
            return True
        is_best = False
        if is_evaluated:
            info.evaluation, info.sample = self._evaluate()
            loss = info.evaluation.loss if info.evaluation else None
            if loss is not None and (position.best_loss is None or loss < position.best_loss):
                position.best_loss, is_best = loss, True
            is_best = self._group.from_main(is_best, "waiting for rank 0 to evaluate")  # saving may need everybody
        evaluated = time.perf_counter()
        if info.is_last or is_best or is_saved:
            self._save(is_best)
        info.seconds[Stage.EVALUATION] = evaluated - began
        info.seconds[Stage.SAVING] = time.perf_counter() - evaluated
        return True


class _Health:
    """The judge of updates, by whether they were finite, and of weights, by a batch that was."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._recent: deque[bool] = deque(maxlen=RECENT_STEPS)
        self._losses: deque[float] = deque(maxlen=RECENT_STEPS)
        self._batch: TokenBatch | None = None
        self._has_warned = False

    def note(self, step: int, batch: TokenBatch, result: StepResult) -> str | None:
        """Add an update; raise an error after too many skipped ones, and return a warning when the loss first jumps."""
        self._in_a_row = 0 if result.is_finite else self._in_a_row + 1
        self._recent.append(not result.is_finite)
        if self._in_a_row >= MAX_BAD_STEPS:
            raise _broken(f"the loss or its gradient was not finite in {self._in_a_row} updates in a row (step {step})")
        if sum(self._recent) >= MAX_BAD_RECENTLY:
            many = f"{sum(self._recent)} of the last {len(self._recent)} updates (step {step})"
            raise _broken(f"the loss or its gradient was not finite in {many}")
        warning = self._warning(step, result.loss)
        if result.is_finite:
            self._batch = batch
            self._losses.append(result.loss)
        return warning

    def is_sound(self, train_step: TrainStep) -> bool:
        """Return whether the weights are worth saving; the loss of an update is that of the weights before it."""
        return self._batch is not None and train_step.is_sound(self._batch)

    def _warning(self, step: int, loss: float) -> str | None:
        if self._has_warned or not self._losses:
            return None
        mean = sum(self._losses) / len(self._losses)
        if not loss > JUMP * mean:
            return None
        self._has_warned = True
        return (
            f"the loss jumped from {mean:.4g} to {loss:.4g} at step {step}: training may have failed."
            " Lower training.learning_rate if it does not come back."
        )


def _broken(what: str) -> TrainingError:
    return TrainingError(
        f"{what}. Nothing was saved since the last good checkpoint, which is intact. Lower training.learning_rate, or"
        " look at the data with `headrace inspect CACHE --step N`."
    )


def _is_due(every: int, step: int, progress_before: float, progress: float) -> bool:
    """Return whether something is due that comes every `every` steps, or for 0 ten times in a run."""
    if every:
        return step % every == 0
    return int(10 * progress + 1e-9) > int(10 * progress_before + 1e-9)
