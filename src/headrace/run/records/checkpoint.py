"""state.json of a checkpoint: all of it for resuming, and the part that generating text needs."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from headrace.data.tokens.special_tokens import SpecialTokensInText
from headrace.models.config import MOST_WIDTH, ModelConfig, heads_of
from headrace.run.config import Config
from headrace.run.records.environment import Environment
from headrace.run.records.record import Record
from headrace.run.records.start import StartRecord
from headrace.training.execution import Execution, upgrade_saved
from headrace.training.schedule import Position

HEAD_WIDTH_BEFORE = 64
"""Width of a head in a run whose configuration leaves the number of heads open, as none does that is written today."""


def upgraded_config(values: dict[str, Any]) -> dict[str, Any]:
    """Return a saved configuration with what it left open when it was written, and what today's defaults changed."""
    data, model, training = values.get("data", {}), values.get("model", {}), values.get("training", {})
    if isinstance(data, dict):
        values = {**values, "data": {"special_tokens_in_text": "special", **data}}
    if isinstance(model, dict) and model.get("num_heads") == 0:
        width = model.get("d_model")
        if isinstance(width, int) and 0 < width <= MOST_WIDTH:
            values = {**values, "model": {**model, "num_heads": heads_of(width, HEAD_WIDTH_BEFORE)}}
    if isinstance(training, dict) and "dropout" in training:  # its recipe was decided, perhaps before there was this
        values = {**values, "training": {"calibrate": False, **training}}
    return values


def _upgraded(values: Any) -> Any:
    return upgraded_config(values) if isinstance(values, dict) else values


class CheckpointState(Record):
    """state.json of a checkpoint: all that resuming needs beside the tensors. Every value is checked when read."""

    position: Position
    """Steps, tokens and time so far, skipped updates, and the best validation loss."""
    loader: dict[str, Any]
    """State of the loader: its place in the order of batches, and fingerprints of the corpus; while the windows of some
    batches are dealt out, that before these batches, and under `dealt_windows` how many of them were shown."""
    execution: Annotated[Execution, BeforeValidator(upgrade_saved)]
    """How steps are computed: micro-batch, precision, kernels, threads."""
    is_execution_final: bool = True
    """Whether later steps are all computed in this way; if not, executions.json of the run says how."""
    most_threads: int = Field(default=0, ge=0)
    """Threads on a machine that nobody else uses, where the run may change their number; 0: it stays as it is."""
    config: Annotated[Config, BeforeValidator(_upgraded)]
    """The resolved configuration."""
    peak_flops: float
    """Measured peak of matrix products of all processes, in FLOP/s."""
    environment: Environment = Field(default_factory=Environment)
    """Versions and machine."""
    processes: int = Field(default=1, ge=1)
    """Processes that trained together; absent from the oldest checkpoints, which know only one."""
    continues_from: StartRecord | None = None
    """The model that the run began from; null: random weights."""
    calibrated_by: float = Field(default=1.0, gt=0)
    """Number by which the logits of the model were multiplied (`training.calibrate`); 1: they were not."""

    def as_json(self) -> dict[str, Any]:
        """Return the state as a JSON object, without what is not known of the machine."""
        return {**self.model_dump(), "environment": self.environment.model_dump(exclude_unset=True)}

    @model_validator(mode="after")
    def _check_numbers(self) -> CheckpointState:
        position = self.position
        if min(position.step, position.tokens, position.bad_steps) < 0 or not 0 <= position.elapsed_s < math.inf:
            raise ValueError(f"no run can be at {position}")
        return self


class SavedTokenizer(Record):
    """The keys of a saved `data` section that say how text becomes tokens; all others are ignored."""

    tokenizer: str
    special_tokens_in_text: SpecialTokensInText


class SavedSections(Record):
    """The sections of a saved configuration that the weights cannot be used without; all others are ignored."""

    model: ModelConfig
    """Read strictly: an unknown key of a newer version may change what the weights compute."""
    data: SavedTokenizer


class SavedPosition(Record):
    """How far a saved model was trained; what else a position holds is ignored."""

    step: int = 0
    """Updates done."""
    tokens: int = 0
    """Tokens trained on."""


class SavedModel(Record):
    """state.json of a checkpoint as far as using the model needs it, whatever a newer version has written beside it."""

    position: SavedPosition = Field(default_factory=SavedPosition)
    """How far the model was trained."""

    config: Annotated[SavedSections, BeforeValidator(_upgraded)]
    """The model, and its tokenizer."""
