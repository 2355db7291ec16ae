"""The summary of a run, kept up to date while it trains."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence
from math import inf

from headrace.machine.contention import ProcessorTime
from headrace.machine.energy import EnergyMeter
from headrace.machine.facts import ProcessTimes, cpu_seconds, peak_memory_bytes
from headrace.perf import speed
from headrace.perf.smoothing import SmoothedLoss
from headrace.run.directory import History
from headrace.run.records import Run
from headrace.stages import PAUSES, UPDATING, Stage
from headrace.training.loop import StepInfo
from headrace.training.schedule import Position

LOOK_SECONDS = 1.0  # the time between two looks at other programs, each of which costs half a millisecond


def recall(run: Run, position: Position, history: History) -> None:
    """Write into the summary of a resumed run what was done before."""
    run.steps, run.tokens, run.train_seconds = position.step, position.tokens, position.elapsed_s
    run.skipped_steps, run.best_validation_loss = position.bad_steps, position.best_loss
    if history.losses:
        run.first_loss, run.train_loss = history.losses[0], history.losses[-1]
        run.smoothed_loss = SmoothedLoss(history.losses).value
    run.best_step = position.best_step
    run.validation_loss = history.validation_loss
    run.compared_loss = history.evaluations[-1].loss if history.evaluations else None
    run.validation_bits_per_byte = history.validation_bits_per_byte
    run.energy_joules = history.energy_joules
    run.first_sample, run.last_sample = history.first_sample, history.last_sample


class Tally:
    """Sums over the steps since a run was started or resumed, from which its summary is kept up to date."""

    def __init__(
        self, run: Run, flops_per_token: float, losses: Sequence[float], began: ProcessTimes, meter: EnergyMeter | None
    ) -> None:
        """`losses`: those of the updates before the run was resumed; `began`: when this session of it did.

        `meter` counts from the beginning of this session; None where the energy cannot be known.
        """
        self._run, self._flops_per_token = run, flops_per_token
        self._smoothed, self._session_began = SmoothedLoss(losses), began
        self.peak_flops = 0.0
        """Measured peak of all processes; 0 while it is not known."""
        self._tokens_before, self._seconds_before = run.tokens, run.train_seconds
        self._seconds: dict[str, float] = {
            stage: 0.0 for stage in (*UPDATING, *PAUSES) if stage is not Stage.AGGREGATION
        }
        self._wait_percents: list[float] = []  # in order of size
        self._began, self._cpu_began, self._processor_began = time.perf_counter(), cpu_seconds(), ProcessorTime.now()
        self._looked_s = -inf  # at the first step: a run that is killed soon must know its energy when it is resumed
        self._meter, self._energy_before = meter, run.energy_joules if run.steps else None

    def add(self, info: StepInfo, position: Position) -> None:
        """Count a step."""
        run, seconds = self._run, self._seconds
        for stage, value in info.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + value
        insort(self._wait_percents, speed.wait_percent(info.seconds[Stage.DATA_WAIT], info.step_s))
        run.steps, run.tokens, run.train_seconds = info.step, info.tokens, info.elapsed_s
        run.skipped_steps, run.best_validation_loss = position.bad_steps, position.best_loss
        run.best_step = position.best_step
        if not info.is_skipped:
            run.first_loss = info.loss if run.first_loss is None else run.first_loss
            run.train_loss, run.smoothed_loss = info.loss, self._smoothed.add(info.loss)
        tokens = info.tokens - self._tokens_before
        working_s = sum(seconds.get(stage, 0.0) for stage in UPDATING)
        run.tokens_per_second = speed.tokens_per_second(tokens, info.elapsed_s - self._seconds_before)
        run.percent_of_peak = speed.percent_of_peak(tokens * self._flops_per_token, working_s, self.peak_flops)
        run.data_wait_percent = speed.median(self._wait_percents)
        run.seconds = seconds
        run.last_sample = info.sample or run.last_sample
        if info.evaluation is not None:
            run.validation_loss = info.evaluation.loss
            run.validation_bits_per_byte = info.evaluation.bits_per_byte
            run.validation_loss_by_source = dict(info.evaluation.sources)
            run.validation_tokens, run.validation_is_whole = info.evaluation.num_tokens, info.evaluation.is_whole
        if info.is_last or time.perf_counter() - self._looked_s > LOOK_SECONDS:
            self._looked_s = time.perf_counter()
            run.processor_taken_percent = ProcessorTime.now().taken_percent_since(self._processor_began)
            run.energy_joules = self._energy()

    def _energy(self) -> dict[str, float]:
        """Return the energy of all sessions, of the parts that are known in each of them."""
        now, before = self._meter.joules() if self._meter else {}, self._energy_before
        if before is None:
            return now
        return {part: before[part] + joules for part, joules in now.items() if part in before}

    def finish(self) -> None:
        """Add what is known once the last step is done."""
        wall_s = time.perf_counter() - self._began
        self._run.seconds = {**self._seconds, Stage.OTHER: max(0.0, wall_s - sum(self._seconds.values()))}
        passed = ProcessTimes.now().since(self._session_began)
        self._run.elapsed_seconds = passed.wall_s
        self._run.user_seconds, self._run.system_seconds = passed.user_s, passed.system_s
        self._run.peak_memory_bytes = peak_memory_bytes()
        self._run.cpu_cores = (cpu_seconds() - self._cpu_began) / max(wall_s, 1e-9)
