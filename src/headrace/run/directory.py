"""The run directory: one living process writes it, and a killed one leaves it readable.

config.json         the resolved configuration (run/config.py)
environment.json    versions, machine, measured peak, how steps are computed (run/records/environment.py)
executions.json     how the first steps were computed while that was being chosen (run/execution/log.py)
metrics.jsonl       one object per step (run/records/step.py)
samples.txt         sampled text before training and at each evaluation
corpus.json         tokenisation and chunking statistics (data/explain/description.py; read by run/records/corpus.py)
ledger.json         what became of every token of a pass (data/explain/ledger.py)
summary.json        the end result (run/records/summary.py)
tune.json           what `headrace tune --run` measured (run/records/tuning.py)
tensorboard/, wandb/, mlflow/, mlflow.db   what trackers write, if asked for
tracker-id          how trackers find the run again when it is resumed
run.lock            held by the process that trains here; means nothing when nobody holds it
checkpoints/        see training/checkpoint.py, and for their state.json run/records/checkpoint.py
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from headrace.errors import CheckpointError, HeadraceError, TrainingError
from headrace.files import make_link, refuse_links, without_nan, write_atomically, writing_failed
from headrace.locks import is_held, take_lock
from headrace.perf.overfitting import Judged
from headrace.perf.smoothing import SmoothedLoss
from headrace.run.config import Config
from headrace.run.records import Environment, Record, StepRecord, upgraded_config

LOCK = "run.lock"
# Everything else is replaced as a whole, which leaves alone what a link leads to.
WRITTEN_IN_PLACE = (LOCK, "metrics.jsonl", "samples.txt", "tensorboard", "wandb", "mlflow", "mlflow.db", "checkpoints")

Kind = TypeVar("Kind", bound=Record)


@dataclass
class History:
    """The part of a run that was done before it was resumed."""

    losses: list[float] = field(default_factory=list)
    """Losses of the updates that were not skipped."""
    steps: list[int] = field(default_factory=list)
    """Steps of these losses."""
    evaluations: list[Judged] = field(default_factory=list)
    """Every evaluation, on the sample that all of them are compared by."""
    validations: list[tuple[int, float]] = field(default_factory=list)
    """Step and loss of every evaluation."""
    validation_loss: float | None = None
    """Newest validation loss."""
    validation_bits_per_byte: float | None = None
    energy_joules: dict[str, float] = field(default_factory=dict)
    """Energy up to the newest step, by part; empty where it is not known."""
    first_sample: str = ""
    last_sample: str = ""


class RunFolder:
    """The run directory, for the process that writes it."""

    def __init__(self, out: str) -> None:
        """Choose the directory: the given one, or where none is given one below runs/ named by the time."""
        self.path = Path(out) if out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        refuse_links(self.path, WRITTEN_IN_PLACE)

    @property
    def holds_a_run(self) -> bool:
        return (self.path / "metrics.jsonl").exists()

    @property
    def is_in_use(self) -> bool:
        """Return whether a living process trains here."""
        return is_held(self.path / LOCK)

    @property
    def holds_a_configuration(self) -> bool:
        return (self.path / "config.json").exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process out of the run directory for as long as this one lives."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = take_lock(self.path / LOCK, patience_s=1.0)  # a report may have it for a moment
        except OSError as problem:
            raise TrainingError(f"{self.path}: cannot be written ({problem.strerror}).") from None
        if lock is None:
            raise TrainingError(
                f"{self.path}: another process is training here. Wait until it ends, or choose another --out."
            )
        try:
            leftovers = self.path.glob("*.tmp") if self.holds_a_configuration else ()
            for leftover in leftovers:  # of a run that was killed here: nobody else writes
                leftover.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def begin(self, config: Config, environment: Environment, step: int) -> None:
        """Write what is known before the first step; after a resume, forget lines of steps that come again."""
        self.write_config(config)
        self.write_record("environment.json", environment)
        _keep_metrics_until(self.path / "metrics.jsonl", step)
        _keep_samples_until(self.path / "samples.txt", step or -1)  # a run that begins again samples step 0 again
        _point_last(self.path)

    def metrics(self) -> MetricsFile:
        """Open metrics.jsonl to add lines to it."""
        return MetricsFile(self.path / "metrics.jsonl")

    def add_sample(self, step: int, text: str) -> None:
        with open(self.path / "samples.txt", "a", encoding="utf-8") as file:
            file.write(_as_sample(step, text))

    def write_config(self, config: Config, undecided: Iterable[str] = ()) -> None:
        """Write the configuration; values that are not decided yet are left out, by dotted key."""
        values = config.model_dump()
        for section, _, name in (key.partition(".") for key in undecided):
            del values[section][name]
        self.write_json("config.json", values)

    def write_record(self, name: str, record: Record) -> None:
        self.write_json(name, record.model_dump(by_alias=True))

    def write_json(self, name: str, value: Any) -> None:
        self._write(name, json.dumps(without_nan(value), indent=1))

    def _write(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text.encode())

    def history(self, step: int) -> History:
        """Read what the steps up to this one left behind, for a run that is resumed."""
        history, smoothed = History(), SmoothedLoss()
        for _, record in read_steps(self.path / "metrics.jsonl"):
            if record is None or record.step > step:
                continue
            history.energy_joules = record.energy_joules or {}
            if record.loss is not None:
                history.losses.append(record.loss)
                history.steps.append(record.step)
                smoothed.add(record.loss)
            if (judged := record.judged(smoothed.value)) is not None:
                history.evaluations.append(judged)
            if record.validation_loss is not None:
                history.validation_loss = record.validation_loss
                history.validations.append((record.step, record.validation_loss))
                history.validation_bits_per_byte = record.validation_bits_per_byte
        samples = [text for number, text in read_samples(self.path / "samples.txt") if number <= step]
        if samples:
            history.first_sample, history.last_sample = samples[0], samples[-1]
        return history


class MetricsFile:
    """metrics.jsonl while it is written: only whole lines are ever in it."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by __exit__
        except OSError as problem:
            raise writing_failed(path, problem) from None

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: str) -> None:
        """Add a line, or raise OSError and leave the file as it was."""
        size = os.fstat(self._file.fileno()).st_size
        data = line.encode()
        try:
            while data:  # less than all is written where the disk is nearly full
                data = data[self._file.write(data) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(size)
            raise


class WatchedFolder(RunFolder):
    """The run directory, for the other processes of a run: they read it, and rank 0 writes it."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def begin(self, config: Config, environment: Environment, step: int) -> None:
        pass

    def metrics(self) -> MetricsFile:
        return MetricsFile(Path(os.devnull))

    def add_sample(self, step: int, text: str) -> None:
        pass

    def _write(self, name: str, text: str) -> None:
        pass


def read_steps(path: Path) -> Iterator[tuple[bytes, StepRecord | None]]:
    """Yield the lines of metrics.jsonl and their records; None for a line that is torn or lacks figures."""
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for line in file:
            try:
                yield line, StepRecord.model_validate(json.loads(line))
            except (ValueError, RecursionError):
                yield line, None


def read_record(path: Path, kind: type[Kind]) -> Kind | None:
    """Read a file of a run directory; None where it is missing, damaged or of another version."""
    try:
        return kind.model_validate(read_json(path))
    except ValidationError:
        return None


def read_environment(path: Path) -> Environment:
    """Read environment.json, without the parts that are damaged or of another version."""
    values = read_json(path)
    if not isinstance(values, dict):
        return Environment()
    try:
        return Environment.model_validate(values)
    except ValidationError as problem:
        unfit = {error["loc"][0] for error in problem.errors()}
        return Environment.model_validate({key: value for key, value in values.items() if key not in unfit})


def read_run_config(folder: Path) -> dict[str, Any]:
    """Read the resolved configuration of a run, section by section."""
    values = read_json(folder / "config.json")
    if not isinstance(values, dict) or not values or not all(isinstance(section, dict) for section in values.values()):
        raise CheckpointError(
            f"{folder}: not a run directory (no readable config.json). Name one that `headrace train` wrote."
        )
    return upgraded_config(values)


def read_config(folder: Path) -> Config | None:
    """Read the resolved configuration of a run; None where it is missing, damaged or of another version."""
    try:
        return Config.model_validate(read_run_config(folder))
    except (CheckpointError, ValidationError):
        return None


def read_json(path: Path) -> Any:
    """Read a JSON file; None where it is missing or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def read_samples(path: Path) -> list[tuple[int, str]]:
    """Read samples.txt: the step and the text of each."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:  # a sample may hold any line end
            text = file.read()
    except OSError:
        return []
    parts = re.split(r"^--- step (\d+) ---\n", text, flags=re.MULTILINE)
    return [(int(step), sample.removesuffix("\n\n")) for step, sample in zip(parts[1::2], parts[2::2], strict=True)]


def _keep_metrics_until(path: Path, step: int) -> None:
    if path.exists():
        kept = [line for line, record in read_steps(path) if record is not None and record.step <= step]
        write_atomically(path, b"".join(kept))


def _keep_samples_until(path: Path, step: int) -> None:
    if path.exists():
        kept = [_as_sample(number, text) for number, text in read_samples(path) if number <= step]
        write_atomically(path, "".join(kept).encode())


def _as_sample(step: int, text: str) -> str:
    return f"--- step {step} ---\n{text}\n\n"


def _point_last(folder: Path) -> None:
    """Make `last`, beside the run directory, a link to it, where links are allowed."""
    link = folder.parent / "last"
    if link.is_symlink() or not link.exists():
        try:
            make_link(link, folder.name)
        except OSError as problem:
            raise HeadraceError(f"{link}: cannot be made ({problem.strerror}).") from None
