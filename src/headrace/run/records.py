"""The files of a run directory as typed records: every field that is written, and that a reader may find.

The loop, the display, TensorBoard, reports, `generate`, `--resume` and the tests all use these. Fields that an older
version did not write have a default, names that it wrote differently are read, and fields of a newer one are ignored.
docs/run-directory.md lists the fields with the sentences that stand under them here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, field_serializer, model_validator

from headrace.perf import speed
from headrace.run.config import Config
from headrace.run.machine import Machine
from headrace.run.remembered_scaling import Scaling
from headrace.stages import EARLIER_NAMES, Stage, update_seconds
from headrace.training.execution import Execution, upgrade_saved
from headrace.training.loop import StepInfo
from headrace.training.schedule import Position


def _none_unless_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _under_present_names(seconds: Any) -> Any:
    if not isinstance(seconds, dict):
        return seconds
    return {EARLIER_NAMES.get(stage, stage): value for stage, value in seconds.items()}


Figure = Annotated[float | None, BeforeValidator(_none_unless_finite)]
"""A number that may be unknown. JSON has no NaN and no infinity: these become None."""
StageSeconds = Annotated[dict[str, float], BeforeValidator(_under_present_names)]
"""Seconds by stage."""


class Record(BaseModel):
    """A part of a run directory."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


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
    loader_cpu_s: float | None = None
    """Processor time of the loader's workers so far."""
    queue_depth: int | None = None
    """Batches that were ready when the step ended."""
    queue_limit: int | None = None
    """Batches that the loader would have held ready at most."""
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
    skipped: bool = False
    """Whether the update was skipped because its loss or gradient was not finite."""
    not_finite: tuple[str, ...] = ()
    """Which of loss and gradient_norm were not finite."""
    warning: str | None = None
    """What a person should know about this step."""

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


class Run(Record):
    """What a run did: summary.json, what `train --json` prints, and what `train` returns."""

    folder: Path = Field(default=Path(), serialization_alias="run", validation_alias=AliasChoices("run", "folder"))
    """The run directory."""
    parameters: int = 0
    """Parameters of the network."""
    steps: int = 0
    """Updates done."""
    tokens: int = 0
    """Tokens trained on, by all processes."""
    train_seconds: float = 0.0
    """Training time over all sessions of the run: waiting, evaluating and saving included."""
    tokens_per_second: float = 0.0
    """Throughput since the run was started or resumed."""
    train_loss: Figure = None
    """Loss of the newest update that was not skipped, in nats per token."""
    first_loss: Figure = None
    """Loss of the first update that was not skipped."""
    validation_loss: Figure = None
    """Newest loss on the validation sample."""
    best_validation_loss: Figure = None
    """Lowest loss on the validation sample that checkpoints are compared by."""
    validation_bits_per_byte: Figure = None
    """Newest validation loss in bits per byte of text."""
    validation_loss_by_source: dict[str, Figure] = Field(default_factory=dict)
    """Newest validation loss of each source, where the corpus has several."""
    validation_tokens: int | None = None
    """Tokens of the newest validation sample."""
    validation_is_whole: bool = False
    """Whether the newest validation sample was the whole validation part."""
    data_wait_percent: float = 0.0
    """Median over steps of the share of a step that was spent waiting for its batch."""
    percent_of_peak: Figure = None
    """Rate of matrix products while training, of the rate measured on this machine; null where that is unknown."""
    peak_memory_bytes: int = 0
    """Most memory that the process had resident at once."""
    cpu_cores: float = 0.0
    """Processor time over wall time."""
    processor_taken_percent: Figure = None
    """Share of the processor time that the run wanted and other programs had; null where the system does not say."""
    skipped_steps: int = 0
    """Updates that were skipped because they were not finite."""
    seconds: StageSeconds = Field(default_factory=dict)
    """Wall time by stage since the run was started or resumed."""
    first_sample: str = ""
    """Text from the untrained network."""
    last_sample: str = ""
    """Newest text from the network."""
    was_stopped: bool = False
    """Whether the run was asked to stop before it reached a limit."""
    warnings: list[str] = Field(default_factory=list)
    """What went wrong without ending the run."""
    corpus: dict[str, Any] = Field(default_factory=dict)
    """What the run trained on: files, bytes, documents, tokens, epochs, and what was noticed in it."""

    @field_serializer("folder")
    def _as_text(self, folder: Path) -> str:
        return str(folder)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return self.model_dump(by_alias=True)


class Environment(Record):
    """environment.json: the machine of a run, and how it computes its steps."""

    python: str | None = None
    """Version of Python."""
    platform: str | None = None
    """Operating system."""
    processor: str | None = None
    """Name of the processor."""
    cores: int | None = None
    """Physical cores."""
    memory_bytes: int | None = None
    """Memory that the process may use: the machine's, or the limit of its container."""
    threads: int | None = None
    """Threads of the computation."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of headrace and the packages it computes with."""
    peak_flops: Figure = None
    """Measured peak of matrix products of all processes, in FLOP/s."""
    execution: dict[str, Any] | None = None
    """How steps are computed: micro-batch, precision, kernels, threads."""
    activation_bytes_per_token: Figure = None
    """What a forward pass keeps for the backward pass."""
    memory_parts: dict[str, int] | None = None
    """Memory of a process by part, from counts."""
    memory_bandwidth: Figure = None
    """Measured memory bandwidth in bytes per second; null on an accelerator."""
    machine: Machine | None = None
    """What `headrace machine` had measured before the run."""
    scaling: Scaling | None = None
    """What `headrace scale` had measured for this configuration before the run."""


class CheckpointState(Record):
    """state.json of a checkpoint: all that resuming needs beside the tensors. Every value is checked when read."""

    position: Position
    """Steps, tokens and time so far, skipped updates, and the best validation loss."""
    loader: dict[str, Any]
    """State of the loader: its place in the order of batches, and fingerprints of the corpus."""
    execution: Annotated[Execution, BeforeValidator(upgrade_saved)]
    """How steps are computed: micro-batch, precision, kernels, threads."""
    config: Config
    """The resolved configuration."""
    peak_flops: float
    """Measured peak of matrix products of all processes, in FLOP/s."""
    environment: Environment = Field(default_factory=Environment)
    """Versions and machine."""
    processes: int = Field(default=1, ge=1)
    """Processes that trained together; absent from the oldest checkpoints, which know only one."""

    @model_validator(mode="before")
    @classmethod
    def _upgrade(cls, values: Any) -> Any:
        """Fill in what checkpoints did not say when there was no choice yet."""
        if isinstance(values, dict) and isinstance(values.get("config"), dict):
            return {**values, "config": upgraded_config(values["config"])}
        return values

    def as_json(self) -> dict[str, Any]:
        """Return the state as a JSON object, without what is not known of the machine."""
        return {**self.model_dump(), "environment": self.environment.model_dump(exclude_unset=True)}

    @model_validator(mode="after")
    def _check_numbers(self) -> CheckpointState:
        position = self.position
        if min(position.step, position.tokens, position.bad_steps) < 0 or not 0 <= position.elapsed_s < math.inf:
            raise ValueError(f"no run can be at {position}")
        return self


def upgraded_config(values: dict[str, Any]) -> dict[str, Any]:
    """Return a saved configuration with the values that were fixed when it was written and can be chosen now."""
    data = values.get("data", {})
    return {**values, "data": {"special_tokens_in_text": "special", **data} if isinstance(data, dict) else data}


class Chunking(Record):
    """How documents become sequences: a part of corpus.json."""

    sequence_length: int
    packing: str
    shortest: int
    mean: float
    longest: int
    sequences_after: int
    documents_split: int
    padding: int
    fill_percent: float


class Vocabulary(Record):
    """The tokenizer of a corpus, as far as a report shows it."""

    vocab_size: int


class CorpusRecord(Record):
    """corpus.json as far as a report shows it; `data.explain.description.describe` writes it."""

    bytes: int
    documents: int
    tokens: int
    bytes_per_token: float
    tokenizer: Vocabulary
    noticed: dict[str, int]
    chunking: Chunking


class FindingRecord(Record):
    """What `headrace tune` found out about one change: a part of tune.json."""

    changes: dict[str, Any]
    """New values by key."""
    gain_percent: Figure
    """Tokens/s gained; null where it could not be measured."""
    spread_percent: Figure
    """How far a second measurement of the gain may be off."""
    memory_change_bytes: int | None = None
    """Peak memory gained or, where it is negative, saved."""
    changes_result: bool
    """Whether training would end in another model."""
    is_taken: bool = False
    """Whether the tuned configuration has the change."""
    note: str
    """Why the change could not be measured, or what else to know about it."""


class TuningRecord(Record):
    """tune.json, and what `tune --json` prints."""

    tokens_per_second: float | None = None
    """Throughput of the given configuration."""
    tuned_tokens_per_second: float | None = None
    """Throughput of the tuned configuration."""
    gain_percent: Figure = None
    """Tokens/s gained by all changes that were taken."""
    spread_percent: Figure = None
    """How far a second measurement of the gain may be off."""
    best_batch_size: int | None = None
    """Batch size beyond which throughput grows no more; null if no other was measured or fits the memory."""
    peak_memory_bytes: int | None = None
    """Peak memory of the tuned configuration."""
    seconds: float | None = None
    """Time that measuring took."""
    findings: list[FindingRecord]
    """Every change that was tried."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """New values by key of the changes that were taken."""
