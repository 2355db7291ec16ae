"""The run directory: one living process writes it, and a killed one leaves it readable.

config.json         the resolved configuration
environment.json    versions, machine, measured peak, how steps are computed
metrics.jsonl       one object per step
samples.txt         sampled text before training and at each evaluation
corpus.json         tokenisation and chunking statistics
ledger.json         what became of every token of a pass
summary.json        the end result
tune.json           what `headrace tune --run` measured
tensorboard/        event files, if asked for
run.lock            held by the process that trains here; means nothing when nobody holds it
checkpoints/        see training/checkpoint.py
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, TrainingError
from headrace.files import refuse_links, temporary_beside, without_nan, write_atomically, writing_failed
from headrace.locks import is_held, take_lock

LOCK = "run.lock"
# Everything else is replaced as a whole, which leaves alone what a link leads to.
WRITTEN_IN_PLACE = (LOCK, "metrics.jsonl", "samples.txt", "tensorboard", "checkpoints")


@dataclass
class History:
    """What is known of a run before it goes on."""

    losses: list[float] = field(default_factory=list)
    """Of every update that was not skipped."""
    validation_loss: float | None = None
    """The newest."""
    validation_bits_per_byte: float | None = None
    first_sample: str = ""
    last_sample: str = ""


class RunFolder:
    """Where a run is written."""

    def __init__(self, out: str) -> None:
        """An empty name makes a new folder below runs/, named by the time."""
        self.path = Path(out) if out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        refuse_links(self.path, WRITTEN_IN_PLACE)

    @property
    def holds_a_run(self) -> bool:
        return (self.path / "metrics.jsonl").exists()

    @property
    def is_in_use(self) -> bool:
        """Whether a living process trains here."""
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
            for leftover in self.path.glob("*.tmp"):  # of a run that was killed here: nobody else writes
                leftover.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def begin(self, config: dict[str, Any], environment: dict[str, Any], step: int) -> None:
        """Write what is known before the first step; after a resume, forget lines of steps that come again."""
        self.write_json("config.json", config)
        self.write_json("environment.json", environment)
        _keep_metrics_until(self.path / "metrics.jsonl", step)
        _keep_samples_until(self.path / "samples.txt", step or -1)  # a run that begins again samples step 0 again
        _point_last(self.path)

    def metrics(self) -> MetricsFile:
        return MetricsFile(self.path / "metrics.jsonl")

    def add_sample(self, step: int, text: str) -> None:
        with open(self.path / "samples.txt", "a", encoding="utf-8") as file:
            file.write(_as_sample(step, text))

    def write_json(self, name: str, value: Any) -> None:
        write_atomically(self.path / name, json.dumps(without_nan(value), indent=1).encode())

    def history(self, step: int) -> History:
        """Read what the steps up to this one left behind, for a run that goes on."""
        history = History()
        for line in _metrics_until(self.path / "metrics.jsonl", step):
            if isinstance(line.get("loss"), float):
                history.losses.append(line["loss"])
            if isinstance(line.get("validation_loss"), float):
                history.validation_loss = line["validation_loss"]
                history.validation_bits_per_byte = line.get("validation_bits_per_byte")
        samples = [text for number, text in read_samples(self.path / "samples.txt") if number <= step]
        if samples:
            history.first_sample, history.last_sample = samples[0], samples[-1]
        return history

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read an object that `write_json` wrote; None where it is missing or damaged."""
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


class MetricsFile:
    """A file of lines, of which only whole ones are ever in it."""

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
    """The same directory for the other processes of a run: they read it, and rank 0 writes it."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def begin(self, config: dict[str, Any], environment: dict[str, Any], step: int) -> None:
        pass

    def metrics(self) -> MetricsFile:
        return MetricsFile(Path(os.devnull))

    def add_sample(self, step: int, text: str) -> None:
        pass

    def write_json(self, name: str, value: Any) -> None:
        pass


def read_samples(path: Path) -> list[tuple[int, str]]:
    """Read samples.txt: the step and the text of each."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:  # a sample may hold any line end
            text = file.read()
    except OSError:
        return []
    parts = re.split(r"^--- step (\d+) ---\n", text, flags=re.MULTILINE)
    return [(int(step), sample.removesuffix("\n\n")) for step, sample in zip(parts[1::2], parts[2::2], strict=True)]


def _metrics_until(path: Path, step: int) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics.jsonl up to a step; one that was torn when the run was killed is left out."""
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = dict(json.loads(text))
                if line["step"] <= step:
                    yield line
            except (ValueError, KeyError, TypeError, RecursionError):
                continue


def _keep_metrics_until(path: Path, step: int) -> None:
    if path.exists():
        kept = [json.dumps(without_nan(line)) + "\n" for line in _metrics_until(path, step)]
        write_atomically(path, "".join(kept).encode())


def _keep_samples_until(path: Path, step: int) -> None:
    if path.exists():
        kept = [_as_sample(number, text) for number, text in read_samples(path) if number <= step]
        write_atomically(path, "".join(kept).encode())


def _as_sample(step: int, text: str) -> str:
    return f"--- step {step} ---\n{text}\n\n"


def _point_last(folder: Path) -> None:
    """runs/last is the newest run of its folder."""
    link = folder.parent / "last"
    if link.is_symlink() or not link.exists():
        temporary = temporary_beside(link)
        try:
            temporary.symlink_to(folder.name)
            os.replace(temporary, link)
        except OSError as problem:
            raise HeadraceError(f"{link}: cannot be made ({problem.strerror}).") from None
