"""What every tracker is: a class that is told how a run begins, goes and ends. Each has a file of its name here."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from headrace.files import write_atomically
from headrace.run.records import Run, StepRecord

PROJECT = "headrace"
"""What runs are filed under, where a tracker has projects and the user has named none."""
STEP_METRICS = (
    "loss", "learning_rate", "gradient_norm", "tokens", "tokens_per_second", "data_wait_percent", "memory_bytes",
    "validation_loss", "validation_bits_per_byte", "validation_perplexity",
)  # fmt: skip
"""Fields of a step's record that trackers get; the same names in all of them."""
SUMMARY_METRICS = (
    "steps", "tokens", "train_seconds", "tokens_per_second", "train_loss", "validation_loss", "best_validation_loss",
    "validation_bits_per_byte", "data_wait_percent", "percent_of_peak", "peak_memory_bytes", "parameters",
)  # fmt: skip
"""Fields of a run's summary that trackers get when it ends."""
_IDENTITY = "tracker-id"


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before its first step."""

    folder: Path
    config: dict[str, Any]
    identity: str
    """A name that no other run has and that stays when the run is resumed."""
    num_steps: int = 0
    """Updates done before this session. Steps after it that an earlier session told of are done again."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name


class Tracker(ABC):
    """An experiment tracker. All methods are called in one thread of its own; what they raise ends only the tracker."""

    @abstractmethod
    def __init__(self, folder: Path) -> None:
        """Import the package: if it is missing, the run does not start."""

    @abstractmethod
    def begin(self, run: TrackedRun) -> None:
        """Open the run, or open it again if it is resumed."""

    @abstractmethod
    def step(self, step: int, values: dict[str, float]) -> None:
        """Add the metrics of a step."""

    @abstractmethod
    def sample(self, step: int, text: str) -> None:
        """Add a text of the network."""

    @abstractmethod
    def summary(self, values: dict[str, float]) -> None:
        """Add the result of the run."""

    @abstractmethod
    def end(self) -> None:
        """Write what is left, and close."""


def make_tracker(name: str, folder: Path) -> Tracker:
    """Return the tracker of this name; an error with its pip line if its package is not installed."""
    tracker: Tracker = import_module(f"headrace.run.trackers.{name}").TRACKER(folder)
    return tracker


def step_values(record: StepRecord) -> dict[str, float]:
    """Return the metrics of a step that are known."""
    return _known(record, STEP_METRICS)


def summary_values(run: Run) -> dict[str, float]:
    """Return the metrics of a run's summary that are known."""
    return _known(run, SUMMARY_METRICS)


def _known(record: object, names: tuple[str, ...]) -> dict[str, float]:
    values = {name: getattr(record, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def read_identity(folder: Path) -> str:
    """Return the identity of the run in a folder; it is made when first asked for."""
    path = folder / _IDENTITY
    if not path.is_file():
        write_atomically(path, secrets.token_hex(8).encode())
    return path.read_text(encoding="ascii", errors="replace").strip()
