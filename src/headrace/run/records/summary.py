"""summary.json: what a whole run did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, field_serializer

from headrace.run.records.overfitting import Overfitting
from headrace.run.records.record import Figure, Record, StageSeconds
from headrace.run.records.start import StartRecord


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
    smoothed_loss: Figure = None
    """Training loss averaged over the newest updates: the last tenth of them, at most about 50."""
    first_loss: Figure = None
    """Loss of the first update that was not skipped."""
    validation_loss: Figure = None
    """Newest loss on the validation sample."""
    best_validation_loss: Figure = None
    """Lowest loss on the validation sample that checkpoints are compared by."""
    best_step: int | None = None
    """Step of that loss: the checkpoint `best`, which generate, serve and export use."""
    compared_loss: Figure = None
    """Newest loss on that same sample."""
    calibrated_by: float = 1.0
    """Number by which the last checkpoint's logits were multiplied (`training.calibrate`); 1: they were not."""
    overfitting: Overfitting | None = None
    """Set while the validation loss rises, beyond what noise explains, and the training loss falls; else null."""
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
    elapsed_seconds: float = 0.0
    """Wall time of the newest session, from opening the corpus to the last save."""
    user_seconds: float = 0.0
    """Processor time of the newest session that the program itself had; of several processes, rank 0's."""
    system_seconds: float = 0.0
    """Processor time of the newest session that the system spent for the program; of several processes, rank 0's."""
    cpu_cores: float = 0.0
    """Processor time over wall time."""
    processor_taken_percent: Figure = None
    """Share of the processor time that the run wanted and other programs had; null where the system does not say."""
    energy_joules: dict[str, float] = Field(default_factory=dict)
    """Energy that the machine used while training, over all sessions, by part; empty where the machine does not say."""
    skipped_steps: int = 0
    """Updates that were skipped because they were not finite."""
    seconds: StageSeconds = Field(default_factory=dict)
    """Wall time by stage since the run was started or resumed."""
    prompts: list[str] = Field(default_factory=list)
    """What samples begin with."""
    first_sample: str = ""
    """Text from the network before the first step; a line of dashes stands between the samples of several prompts."""
    last_sample: str = ""
    """Newest text from the network, from the same prompts."""
    was_stopped: bool = False
    """Whether the run was asked to stop before it reached a limit."""
    warnings: list[str] = Field(default_factory=list)
    """What went wrong without ending the run."""
    rows_by_source: dict[str, int] = Field(default_factory=dict)
    """Rows trained on of each source, if the corpus is a mixture; together, steps times batch size."""
    continues_from: StartRecord | None = None
    """The model that the run began from; null: random weights."""
    corpus: dict[str, Any] = Field(default_factory=dict)
    """What the run trained on: files, bytes, documents, tokens, epochs, and what was noticed in it."""

    @field_serializer("folder")
    def _as_text(self, folder: Path) -> str:
        return str(folder)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return self.model_dump(by_alias=True)
