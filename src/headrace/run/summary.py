"""What a run did, in numbers: kept up to date while it trains, printed and saved at its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from headrace.files import without_nan
from headrace.perf import speed
from headrace.run.directory import History
from headrace.training.loop import Position, StepInfo, Tally


@dataclass
class Run:
    """What a run did; also what `train --json` prints."""

    folder: Path
    parameters: int
    steps: int = 0
    tokens: int = 0
    train_seconds: float = 0.0
    tokens_per_second: float = 0.0
    train_loss: float | None = None
    first_loss: float | None = None
    validation_loss: float | None = None
    """The newest."""
    best_validation_loss: float | None = None
    validation_bits_per_byte: float | None = None
    validation_loss_by_source: dict[str, float | None] = field(default_factory=dict)
    """Of a corpus of several sources."""
    data_wait_percent: float = 0.0
    percent_of_peak: float | None = None
    peak_memory_bytes: int = 0
    cpu_cores: float = 0.0
    processor_taken_percent: float | None = None
    """Share of the processor time that the run wanted and other programs had; None where the system does not say."""
    skipped_steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went, since it was started or resumed."""
    first_sample: str = ""
    last_sample: str = ""
    was_stopped: bool = False
    warnings: list[str] = field(default_factory=list)
    """What went wrong without ending the run."""
    corpus: dict[str, Any] = field(default_factory=dict)
    """What it trained on: see `run/corpus_facts.py`."""

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["run"] = str(values.pop("folder"))
        return dict(without_nan(values))

    def recall(self, position: Position, history: History) -> None:
        """Take up what is known of a run that goes on."""
        self.steps, self.tokens, self.train_seconds = position.step, position.tokens, position.elapsed_s
        self.skipped_steps, self.best_validation_loss = position.bad_steps, position.best_loss
        if history.losses:
            self.first_loss, self.train_loss = history.losses[0], history.losses[-1]
        self.validation_loss = history.validation_loss
        self.validation_bits_per_byte = history.validation_bits_per_byte
        self.first_sample, self.last_sample = history.first_sample, history.last_sample

    def recall_summary(self, summary: dict[str, Any]) -> None:
        """Take up the summary of a finished run as it was written."""
        for key in summary.keys() & {known.name for known in fields(self)} - {"folder"}:
            setattr(self, key, summary[key])

    def update(self, info: StepInfo, tally: Tally, flops_per_token: float, peak_flops: float) -> None:
        """After a step."""
        self.steps, self.tokens, self.train_seconds = info.step, info.tokens, info.elapsed_s
        if not info.is_skipped:
            self.first_loss = info.loss if self.first_loss is None else self.first_loss
            self.train_loss = info.loss
        self.tokens_per_second = speed.tokens_per_second(tally.tokens, tally.elapsed_s)
        self.percent_of_peak = speed.percent_of_peak(tally.tokens * flops_per_token, tally.working_s, peak_flops)
        self.data_wait_percent = 100 * speed.median(tally.wait_shares)
        self.seconds = tally.seconds
        self.last_sample = info.sample or self.last_sample
        if info.evaluation is not None:
            self.validation_loss = info.evaluation.loss
            self.validation_bits_per_byte = info.evaluation.bits_per_byte
            self.validation_loss_by_source = info.evaluation.sources
