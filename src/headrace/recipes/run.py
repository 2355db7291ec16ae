"""What a run did, in numbers: kept up to date while it trains, printed and saved at its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.perf import speed
from headrace.training.loop import StepInfo, Tally


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
    validation_bits_per_byte: float | None = None
    validation_loss_by_source: dict[str, float | None] = field(default_factory=dict)
    """Of a corpus of several sources."""
    data_wait_percent: float = 0.0
    percent_of_peak: float | None = None
    peak_memory_bytes: int = 0
    cpu_cores: float = 0.0
    skipped_steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went, since it was started or resumed."""
    first_sample: str = ""
    last_sample: str = ""
    was_stopped: bool = False

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["run"] = str(values.pop("folder"))
        return values

    def update(self, info: StepInfo, tally: Tally, flops_per_token: float, peak_flops: float) -> None:
        """After a step."""
        self.steps, self.tokens, self.train_seconds = info.step, info.tokens, info.elapsed_s
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
