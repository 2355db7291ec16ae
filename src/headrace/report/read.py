"""Reading a run directory for a report; what is missing or torn is noted, not fatal."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from headrace.data.explain.ledger import Ledger
from headrace.errors import CheckpointError, ReportError
from headrace.files import pointed_to
from headrace.perf import breakdown, flops, speed
from headrace.perf.overfitting import Judged
from headrace.perf.smoothing import SmoothedLoss
from headrace.run.config import SECTIONS, Config
from headrace.run.directory import RunFolder, read_environment, read_json, read_run_config, read_samples, read_steps
from headrace.run.records import CorpusRecord, Environment, Overfitting, Run, StepRecord, TuningRecord
from headrace.run.session.overfitting import find_overfitting
from headrace.stages import UPDATING, Stage
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import update_flops

DONE_SECONDS = 1e-4  # a stage that was not due takes less
ROUNDED_SECONDS = 0.02  # what rounding may add to the processor time between two steps

Part = TypeVar("Part")


@dataclass
class RunRecord:
    """Everything that a run wrote about itself, and what follows from it."""

    name: str
    folder: Path
    config: Config
    environment: Environment
    metrics: list[StepRecord]
    summary: Run | None
    """The summary; None while the run is going on, and after it was killed."""
    corpus: CorpusRecord | None
    ledger: list[Ledger] | None
    tuning: TuningRecord | None
    """What `headrace tune --run` measured."""
    samples: list[tuple[int, str]]
    notes: list[str] = field(default_factory=list)
    prefix: str = ""
    """What stands before a sentence about this run, if the report is about several; else empty."""
    is_running: bool = False
    """Whether a living process trains here."""

    @property
    def training(self) -> TrainingConfig:
        return self.config.training

    @property
    def elapsed_s(self) -> float:
        return self.metrics[-1].elapsed_s

    @property
    def tokens(self) -> int:
        return self.metrics[-1].tokens

    @property
    def num_micro_batches(self) -> int:
        return self.training.batch_size // max(self.training.micro_batch_size, 1)

    @property
    def steps_per_epoch(self) -> float | None:
        rows = sum(ledger.rows for ledger in self.ledger) if self.ledger else 0
        return rows / self.training.batch_size if rows else None

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage, summed over all steps."""
        totals: dict[str, float] = {}
        for record in self.metrics:
            for stage, value in record.seconds.items():
                totals[stage] = totals.get(stage, 0.0) + value
        return totals

    @cached_property
    def smoothed_losses(self) -> list[tuple[StepRecord, float]]:
        """Return the steps that have a loss, and the training loss averaged over the updates before each."""
        smoothed = SmoothedLoss()
        return [(record, smoothed.add(record.loss)) for record in self.metrics if record.loss is not None]

    @property
    def training_loss(self) -> float | None:
        """Return the training loss, averaged over the newest updates; None if no update had one."""
        return self.smoothed_losses[-1][1] if self.smoothed_losses else None

    @cached_property
    def evaluations(self) -> list[tuple[StepRecord, float]]:
        """Return the steps that were evaluated, and their validation losses."""
        return [(record, record.validation_loss) for record in self.metrics if record.validation_loss is not None]

    @cached_property
    def judged(self) -> list[Judged]:
        """Return the evaluations on the sample that all of them are compared by."""
        found = [record.judged(training_loss) for record, training_loss in self.smoothed_losses]
        return [judged for judged in found if judged is not None]

    @cached_property
    def overfitting(self) -> Overfitting | None:
        """Return how the run overfits at its newest evaluation; None if it does not."""
        tokens = sum(ledger.tokens for ledger in self.ledger) if self.ledger else 0
        return find_overfitting(self.config, self.judged, tokens or None)

    @cached_property
    def best_step(self) -> int | None:
        """Return the step of the checkpoint `best`; None if there is none."""
        found = re.fullmatch(r"step-(\d+)", pointed_to(self.folder / "checkpoints" / "best") or "")
        return int(found[1]) if found else None

    @cached_property
    def shares(self) -> list[breakdown.Share]:
        return breakdown.break_down(self.seconds, self.elapsed_s)

    @cached_property
    def work(self) -> flops.Work:
        """Return the FLOPs and parameters of one update."""
        training = self.training
        return flops.count_work(
            self.config.model,
            training.mean_window,
            self.training.tokens_per_update,
            update_flops(self.config.model, training.optimizer, Execution.from_config(training).dtype),
            training.gradient_checkpointing,
            training.num_logits(self.config.model.vocab_size),
        )

    @property
    def peak_flops(self) -> float | None:
        return self.environment.peak_flops

    @property
    def bottleneck(self) -> breakdown.Bottleneck:
        taken = self.summary.processor_taken_percent if self.summary else None
        return breakdown.find_bottleneck(self.shares, self.percent_of_peak, taken)

    @cached_property
    def percent_of_peak(self) -> float | None:
        working = sum(self.seconds.get(stage, 0.0) for stage in UPDATING)
        done = self.tokens * self.work.counts.training_flops_per_token
        return speed.percent_of_peak(done, working, self.peak_flops)

    @cached_property
    def data_wait_percent(self) -> float:
        return speed.median(sorted(record.data_wait_percent for record in self.metrics))

    @cached_property
    def cpu_cores(self) -> float | None:
        if not self.cpu_intervals:
            return self.summary.cpu_cores if self.summary else None
        used_s = sum(cpu_s for _, cpu_s, _ in self.cpu_intervals)
        return used_s / max(sum(elapsed_s for *_, elapsed_s in self.cpu_intervals), 1e-9)

    @cached_property
    def cpu_intervals(self) -> list[tuple[int, float, float]]:
        """Return for each pair of neighbouring steps the later one, the processor time and the wall time between them.

        A resumed run counts its processor time anew: the pair around that moment is left out. So is one with more
        processor time than the cores can have given: it measured the peak, which is no part of the training time.
        """
        most = 2 * (self.environment.cores or math.inf)  # a core may run two threads
        timed = [(record.step, record.cpu_s, record.elapsed_s) for record in self.metrics if record.cpu_s is not None]
        return [
            (step, cpu_s - cpu_before_s, elapsed_s - before_s)
            for (_, cpu_before_s, before_s), (step, cpu_s, elapsed_s) in pairwise(timed)
            if 0 <= cpu_s - cpu_before_s <= most * (elapsed_s - before_s) + ROUNDED_SECONDS
        ]

    def steps_between(self, stage: str) -> int | None:
        """Return after how many steps, on average, a stage came that not every step has; None if it never did."""
        times = sum(record.seconds.get(stage, 0.0) > DONE_SECONDS for record in self.metrics)
        if stage == Stage.EVALUATION:  # measuring what it costs takes time as well
            times = sum(record.validation_loss is not None for record in self.metrics) or times
        return round(len(self.metrics) / times) if times else None

    @property
    def is_to_be_evaluated(self) -> bool:
        """Return whether a run that goes on, and was not evaluated yet, will be."""
        data = self.config.data
        return self.is_running and not self.evaluations and bool(data.validation_fraction or data.validation_sources)

    @property
    def machine_memory_bytes(self) -> int | None:
        return self.environment.memory_bytes

    @property
    def num_processes(self) -> int:
        return self.config.run.processes if isinstance(self.config.run.processes, int) else 1

    @property
    def peak_memory_bytes(self) -> int:
        seen = max(record.memory_bytes or 0 for record in self.metrics)
        return max(seen, self.summary.peak_memory_bytes if self.summary else 0)

    def last(self, key: str) -> Any:
        """Return the newest value of a field of the steps; None if no step has one."""
        values = (getattr(record, key) for record in reversed(self.metrics))
        return next((value for value in values if value is not None), None)


def read_run(folder: Path) -> RunRecord:
    """Read a run directory, also of a run that is still going on or was killed."""
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such run directory. Runs are where `headrace train --out` put them.")
    notes: list[str] = []
    metrics = _read_metrics(folder / "metrics.jsonl", notes)
    environment = read_environment(folder / "environment.json")
    _check_version(environment, notes)
    config = _read_config(folder, environment)
    summary = _read_part(folder / "summary.json", Run, notes)
    is_running = RunFolder(str(folder)).is_in_use
    if summary is not None and (is_running or summary.steps != metrics[-1].step):
        summary = None  # of the run before it was resumed
    if is_running:
        notes.append(f"still running: all figures are up to step {metrics[-1].step:,}")
    elif summary is None:
        notes.append(f"did not end by itself: all figures are up to step {metrics[-1].step:,}")
    return RunRecord(
        name=folder.resolve().name,
        folder=folder,
        config=config,
        environment=environment,
        metrics=metrics,
        summary=summary,
        corpus=_read_part(folder / "corpus.json", CorpusRecord, notes),
        ledger=_read_part(folder / "ledger.json", list[Ledger], notes),
        tuning=_read_part(folder / "tune.json", TuningRecord, notes),
        samples=read_samples(folder / "samples.txt"),
        notes=notes,
        is_running=is_running,
    )


def _read_config(folder: Path, environment: Environment) -> Config:
    """Read the configuration; keys that this version does not know are ignored, unless they shape the model."""
    try:
        sections = read_run_config(folder)
        return Config.model_validate(
            {
                name: {
                    key: value for key, value in sections[name].items() if name == "model" or key in kind.model_fields
                }
                for name, kind in SECTIONS.items()
                if name in sections
            }
        )
    except (CheckpointError, ValidationError):
        raise ReportError(
            f"{folder}: config.json is missing or not as this version of headrace writes it"
            f" ({_written_by(environment)}). Upgrade headrace if the run is newer."
        ) from None


def _read_metrics(path: Path, notes: list[str]) -> list[StepRecord]:
    metrics = []
    for number, (_, record) in enumerate(read_steps(path), start=1):
        if record is None:
            notes.append(f"line {number} of metrics.jsonl is torn or lacks figures, and was left out")
        else:
            metrics.append(record)
    if not metrics:
        raise ReportError(f"{path.parent}: no metrics yet (metrics.jsonl). Has the run done its first step?")
    return metrics


def _read_part(path: Path, kind: type[Part], notes: list[str]) -> Part | None:
    """Read a file that a report can do without."""
    try:
        return TypeAdapter(kind).validate_python(read_json(path)) if path.exists() else None
    except ValidationError:
        notes.append(f"{path.name} is not as this version of headrace writes it, and was left out")
        return None


def _written_by(environment: Environment) -> str:
    return f"written by headrace {environment.versions.get('headrace', 'of unknown version')}"


def _check_version(environment: Environment, notes: list[str]) -> None:
    mine, theirs = metadata.version("headrace"), environment.versions.get("headrace", "0")
    if _as_numbers(theirs) > _as_numbers(mine):
        notes.append(f"{_written_by(environment)}, newer than this {mine}: some figures may be missing")


def _as_numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
