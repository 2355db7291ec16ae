"""A run directory becomes a record; what is missing or torn is noted, not fatal."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.errors import ReportError
from headrace.files import without_nan
from headrace.models.config import ModelConfig
from headrace.perf import breakdown, flops, speed
from headrace.run import shapes
from headrace.run.directory import RunFolder, read_samples
from headrace.training.loop import TRAINING_STAGES
from headrace.training.optimizers.assignment import RULES, update_flops

DONE_SECONDS = 1e-4  # a stage that was not due takes less


@dataclass
class RunRecord:
    """Everything that a run wrote about itself."""

    name: str
    folder: Path
    config: dict[str, Any]
    model: ModelConfig
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    corpus: dict[str, Any] | None
    ledger: list[dict[str, Any]] | None
    tuning: dict[str, Any] | None
    """What `headrace tune --run` measured."""
    samples: list[tuple[int, str]]
    notes: list[str] = field(default_factory=list)

    @property
    def training(self) -> dict[str, Any]:
        return dict(self.config["training"])

    @property
    def elapsed_s(self) -> float:
        return float(self.metrics[-1]["elapsed_s"])

    @property
    def tokens(self) -> int:
        return int(self.metrics[-1]["tokens"])

    @property
    def tokens_per_step(self) -> int:
        return int(self.training["batch_size"] * self.training["max_length"])

    @property
    def num_micro_batches(self) -> int:
        return int(self.training["batch_size"] // max(self.training["micro_batch_size"], 1))

    @property
    def steps_per_epoch(self) -> float | None:
        rows = sum(ledger["rows"] for ledger in self.ledger) if self.ledger else 0
        return rows / self.training["batch_size"] if rows else None

    @cached_property
    def seconds(self) -> dict[str, float]:
        """By stage, over all steps."""
        totals: dict[str, float] = {}
        for line in self.metrics:
            for stage, value in line["seconds"].items():
                totals[stage] = totals.get(stage, 0.0) + value
        return totals

    @cached_property
    def shares(self) -> list[breakdown.Share]:
        return breakdown.break_down(self.seconds, self.elapsed_s)

    @cached_property
    def work(self) -> flops.Work:
        """Of one update."""
        training = self.training
        return flops.count_work(
            self.model,
            training["max_length"],
            self.tokens_per_step,
            update_flops(self.model, training["optimizer"]),
            training["gradient_checkpointing"],
        )

    @property
    def peak_flops(self) -> float | None:
        return self.environment.get("peak_flops")

    @property
    def bottleneck(self) -> breakdown.Bottleneck:
        taken = self.summary.get("processor_taken_percent")
        return breakdown.find_bottleneck(self.shares, self.percent_of_peak, taken)

    @cached_property
    def percent_of_peak(self) -> float | None:
        working = sum(self.seconds.get(stage, 0.0) for stage in TRAINING_STAGES)
        done = self.tokens * self.work.counts.training_flops_per_token
        return speed.percent_of_peak(done, working, self.peak_flops)

    @cached_property
    def data_wait_percent(self) -> float:
        return speed.median(sorted(speed.wait_share(m["seconds"]["data wait"], m["step_s"]) for m in self.metrics))

    @cached_property
    def cpu_cores(self) -> float | None:
        timed = [line for line in self.metrics if "cpu_s" in line]
        # A resumed run counts from nothing again.
        pairs = [(before, after) for before, after in pairwise(timed) if after["cpu_s"] >= before["cpu_s"]]
        if not pairs:
            return self.summary.get("cpu_cores")
        used, passed = (sum(after[key] - before[key] for before, after in pairs) for key in ("cpu_s", "elapsed_s"))
        return float(used / max(passed, 1e-9))

    def steps_between(self, stage: str) -> int | None:
        """How often something was done that not every step does."""
        times = sum(line["seconds"].get(stage, 0.0) > DONE_SECONDS for line in self.metrics)
        return round(len(self.metrics) / times) if times else None

    @property
    def machine_memory_bytes(self) -> int | None:
        return self.environment.get("memory_bytes")

    @property
    def num_processes(self) -> int:
        return int(self.config.get("run", {}).get("processes") or 1)

    @property
    def peak_memory_bytes(self) -> int:
        seen = max(int(line.get("memory_bytes", 0)) for line in self.metrics)
        return max(seen, int(self.summary.get("peak_memory_bytes", 0)))

    def last(self, key: str) -> Any:
        """The newest value of something that not every step has."""
        return next((line[key] for line in reversed(self.metrics) if line.get(key) is not None), None)


def read_run(folder: Path) -> RunRecord:
    """Read a run directory, also of a run that is still going on or was killed."""
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such run directory. Runs are where `headrace train --out` put them.")
    notes: list[str] = []
    metrics = _read_metrics(folder / "metrics.jsonl", notes)
    config = _read_json(folder / "config.json")
    environment = shapes.fitting_parts(_read_part(folder / "environment.json", {}, notes) or {}, shapes.ENVIRONMENT)
    _check_version(environment, notes)
    try:
        if not shapes.fits(config, shapes.CONFIG) or config["training"]["batch_size"] < 1:
            raise ValueError("lacks values that a report needs")
        if config["training"]["optimizer"] not in RULES:
            raise ValueError("names an optimizer that this version does not have")
        model = ModelConfig.model_validate(config["model"])
    except (ValidationError, ValueError):
        raise ReportError(
            f"{folder}: config.json or metrics.jsonl is missing or not as this version of headrace writes it"
            f" ({_written_by(environment)}). Upgrade headrace if the run is newer."
        ) from None
    summary = _read_part(folder / "summary.json", shapes.SUMMARY, notes)
    if RunFolder(str(folder)).is_in_use:
        notes.append(f"still running: everything here is so far, at step {metrics[-1]['step']:,}")
    elif not summary:
        notes.append(f"did not end by itself: everything here is up to step {metrics[-1]['step']:,}")
    return RunRecord(
        name=folder.resolve().name,
        folder=folder,
        config=config,
        model=model,
        environment=environment,
        metrics=metrics,
        summary=summary or {},
        corpus=_read_part(folder / "corpus.json", shapes.CORPUS, notes),
        ledger=_read_part(folder / "ledger.json", shapes.LEDGER, notes),
        tuning=_read_part(folder / "tune.json", shapes.TUNING, notes),
        samples=read_samples(folder / "samples.txt"),
        notes=notes,
    )


def _read_metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    metrics = []
    for number, text_line in enumerate(text.splitlines(), start=1):
        try:
            line = without_nan(json.loads(text_line))  # runs of headrace 0.x wrote NaN
        except (ValueError, RecursionError):
            line = None
        numbers = line if not isinstance(line, dict) else {k: v for k, v in line.items() if k not in shapes.STEP_TEXTS}
        if shapes.fits(numbers, shapes.STEP):
            metrics.append(line)
        else:
            notes.append(f"line {number} of metrics.jsonl is torn or lacks figures, and was left out")
    if not metrics:
        raise ReportError(f"{path.parent}: no metrics yet (metrics.jsonl). Has the run done its first step?")
    return metrics


def _read_part(path: Path, shape: Any, notes: list[str]) -> Any:
    """Read what a report can do without."""
    values = _read_json(path)
    if path.exists() and not shapes.fits(values, shape):
        notes.append(f"{path.name} is not as this version of headrace writes it, and was left out")
        return None
    return values


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _written_by(environment: dict[str, Any]) -> str:
    return f"written by headrace {environment.get('versions', {}).get('headrace', 'of unknown version')}"


def _check_version(environment: dict[str, Any], notes: list[str]) -> None:
    mine, theirs = metadata.version("headrace"), environment.get("versions", {}).get("headrace", "0")
    if _as_numbers(theirs) > _as_numbers(mine):
        notes.append(f"{_written_by(environment)}, newer than this {mine}: some figures may be missing")


def _as_numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
