"""One line of metrics.jsonl: what an update did, and how long each of its stages took."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import model_validator

from headrace.perf import speed
from headrace.perf.overfitting import Judged
from headrace.run.records.record import Figure, Record, StageSeconds
from headrace.stages import Stage, update_seconds
from headrace.training.loop import StepInfo

UNKNOWN_SAMPLE_TOKENS = 10_000
"""Tokens of a validation sample whose size an older version did not write."""


class StepRecord(Record):
    """One line of metrics.jsonl."""

    step: int
    """Updates done so far."""
    tokens: int
    """Tokens trained on so far, by all processes."""
    loss: Figure
    """Mean loss of the update's tokens, in nats per token; null where it was not finite."""
    learning_rate: float
    """Learning rate of the update."""
    gradient_norm: Figure
    """Norm of the gradient before clipping; null where it was not finite."""
    elapsed_s: float
    """Training time so far, over all sessions of the run."""
    step_s: float
    """Time from the end of the step before to the end of this one."""
    seconds: StageSeconds
    """Time of the step by stage; of several processes, the longest data wait and rank 0's other stages."""
    tokens_per_second: float | None = None
    """Throughput since the run was started or resumed."""
    memory_bytes: int | None = None
    """Resident memory of the process."""
    cpu_s: float | None = None
    """Processor time of the process so far; counted anew after a resume."""
    energy_joules: dict[str, float] | None = None
    """Energy that the machine had used by then, over all sessions, by part; absent where the machine does not say."""
    loader_cpu_s: float | None = None
    """Processor time of the loader's workers so far."""
    queue_depth: int | None = None
    """Batches that were ready when the step ended."""
    queue_limit: int | None = None
    """Most batches that the loader would have held ready."""
    buffered_bytes: int | None = None
    """Memory that the loader's batches took."""
    data_wait_mean_s: float | None = None
    """Data wait averaged over the processes; only with several."""
    validation_loss: Figure = None
    """Loss on the validation sample, in nats per token; only where the step was evaluated."""
    validation_bits_per_byte: Figure = None
    """Validation loss in bits per byte of text, which is comparable between tokenizers."""
    validation_perplexity: Figure = None
    """Exponential of the validation loss."""
    validation_loss_by_source: dict[str, Figure] | None = None
    """Validation loss of each source, where the corpus has several."""
    validation_tokens: int | None = None
    """Tokens of the validation sample."""
    validation_is_whole: bool = False
    """Whether the validation sample was the whole validation part."""
    compared_loss: Figure = None
    """Loss on the validation sample that all evaluations are compared by; only where validation_loss is of another."""
    compared_tokens: int | None = None
    """Tokens of that sample."""
    skipped: bool = False
    """Whether the update was skipped because its loss or gradient was not finite."""
    not_finite: tuple[str, ...] = ()
    """Which of loss and gradient_norm were not finite."""
    warning: str | None = None
    """What the user should know about this step."""

    @model_validator(mode="after")
    def _check_stages(self) -> StepRecord:
        if Stage.DATA_WAIT not in self.seconds:
            raise ValueError("seconds lacks the data wait")
        return self

    @classmethod
    def of(cls, info: StepInfo, **gauges: Any) -> StepRecord:
        """Build the record of a step; `gauges`: what the process and the loader showed at its end, by field."""
        figures = {"loss": info.loss, "gradient_norm": info.gradient_norm}
        evaluation = info.evaluation
        if evaluation is not None:
            gauges |= {
                "validation_loss": evaluation.loss,
                "validation_bits_per_byte": evaluation.bits_per_byte,
                "validation_perplexity": evaluation.perplexity,
                "validation_loss_by_source": evaluation.sources or None,
                "validation_tokens": evaluation.num_tokens,
                "validation_is_whole": evaluation.is_whole,
            }
        if info.judged is not None and info.judged is not evaluation:
            gauges |= {"compared_loss": info.judged.loss, "compared_tokens": info.judged.num_tokens}
        return cls(
            step=info.step,
            tokens=info.tokens,
            loss=info.loss,
            gradient_norm=info.gradient_norm,
            learning_rate=info.learning_rate,
            elapsed_s=round(info.elapsed_s, 6),
            step_s=round(info.step_s, 6),
            seconds={stage: round(seconds, 6) for stage, seconds in info.seconds.items()},
            skipped=info.is_skipped,
            not_finite=tuple(name for name, value in figures.items() if info.is_skipped and not math.isfinite(value)),
            warning=info.warning,
            **gauges,
        )

    def judged(self, training_loss: float | None) -> Judged | None:
        """Return the evaluation after this step, as it is compared with others; None if there was none.

        `training_loss`: the smoothed one at this step.
        """
        loss = self.validation_loss if self.compared_loss is None else self.compared_loss
        if loss is None or training_loss is None:
            return None
        sample_tokens = self.compared_tokens or self.validation_tokens or UNKNOWN_SAMPLE_TOKENS
        return Judged(self.step, self.tokens, self.elapsed_s, loss, training_loss, sample_tokens)

    @property
    def data_wait_percent(self) -> float:
        """Return the share of the step that was spent waiting for its batch."""
        return speed.wait_percent(self.seconds[Stage.DATA_WAIT], self.step_s)

    @property
    def update_s(self) -> float:
        """Return the time of the step without evaluation and saving."""
        return update_seconds(self.step_s, self.seconds)

    def as_line(self) -> str:
        """Return the record as a line of metrics.jsonl: what does not apply to this step is left out."""
        return json.dumps(self.model_dump(exclude_defaults=True)) + "\n"
