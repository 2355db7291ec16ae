"""Running a cell: its configuration, `headrace train` in a process of its own, the judgement, the result.

The run directory of a cell is what `headrace train` writes. The laboratory's own files are in the folder `lab` in it:
request.json (what was asked for), config.json (what `headrace train` was given), train.log, result.json, and claims.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.errors import EXIT_STOPPED, HeadraceError, UsageError
from headrace.files import write_atomically
from headrace.run.config import Layers
from headrace.run.corpus import complete_model, prepare_training
from headrace.run.directory import RunFolder, read_config, read_json, read_record
from headrace.run.records import Run
from headrace.run.start.settle import settled
from lab.corpora import Corpus, held_out_texts
from lab.judge import judge
from lab.table import Cell, Table

Train = Callable[[Path, Path], None]
"""Trains a run directory by a configuration file; whether it goes on or begins is told by the file."""
REQUEST, RESULT = "request.json", "result.json"
_PACKAGE = Path(__file__).resolve().parents[1]


class StoppedError(HeadraceError):
    """A run that was asked to stop, and saved what it had."""

    exit_code = EXIT_STOPPED


@dataclass(frozen=True)
class Place:
    """The run directory of a cell, and the laboratory's files in it."""

    run: Path

    @property
    def lab(self) -> Path:
        return self.run / "lab"

    def result(self) -> dict[str, Any] | None:
        """Return the result of a finished cell; None for any other."""
        found = read_json(self.lab / RESULT)
        return found if isinstance(found, dict) and "bits_per_byte" in found else None

    def write(self, name: str, value: Any) -> None:
        write_atomically(self.lab / name, json.dumps(value, indent=1).encode())


def request_of(table: Table, cell: Cell, corpus: Corpus) -> dict[str, Any]:
    """Return everything that a cell's result depends on, but for code and machine; places of files are left out."""
    return {
        "variant": cell.variant,
        "values": table.layers(cell.variant, corpus.values).values,
        "corpus": corpus.name,
        "corpus_digest": corpus.digest,
        "budget": str(cell.budget),
        "seed": cell.seed,
        "context": table.judging_context(),
        "judge_bytes": table.judge_bytes,
    }


def check_request(place: Place, request: dict[str, Any]) -> None:
    """Refuse a run directory that was made for another request: its result would be taken for this one's."""
    before = read_json(place.lab / REQUEST)
    if before is None:
        if RunFolder(str(place.run)).holds_a_run:
            raise UsageError(f"{place.run}: holds a run that this table did not start. Choose another --out.")
        return
    now = json.loads(json.dumps(request))
    keys = [key for key in now if not isinstance(before, dict) or before.get(key) != now[key]]
    if keys:
        raise UsageError(
            f"{place.run}: was made with another {keys[0]} than the table has now. Give the variant another name,"
            " choose another --out, or delete this folder."
        )


def configure(table: Table, cell: Cell, corpus: Corpus, run: Path) -> Layers:
    """Return the layers of a cell's configuration.

    The text is tokenised here: no run's time is spent on it, whichever comes first. Every run whose budget is time
    measures anew how to compute its steps, or the first of equal runs would pay for the others.
    """
    layers = table.layers(cell.variant, corpus.values)
    is_timed = cell.budget.unit == "s"
    own = {
        "training.seed": cell.seed,
        "data.sources": [str(corpus.train)],
        "run.out": str(run),
        "run.resume": "auto",
        "run.measure_again": is_timed,
    }
    layers.add(own, "the laboratory")
    if is_timed:
        layers.add(cell.budget.limits(layers.build()), f"the budget of {cell.budget}")
    config = layers.build()
    if is_timed:
        config = settled(config)  # with the network that is chosen for the time, where none is given
    complete_model(config, prepare_training(config).tokenizer)
    if not is_timed:
        layers.add(cell.budget.limits(config), f"the budget of {cell.budget}")
    return layers


def run_cell(table: Table, cell: Cell, corpus: Corpus, place: Place, train: Train) -> dict[str, Any]:
    """Train and judge a cell that is claimed, going on where an earlier process was; return its result."""
    request = request_of(table, cell, corpus)
    check_request(place, request)
    layers = configure(table, cell, corpus, place.run)
    place.lab.mkdir(parents=True, exist_ok=True)
    place.write(REQUEST, request)
    place.write("config.json", layers.values)
    train(place.lab / "config.json", place.run)
    summary = read_record(place.run / "summary.json", Run)
    if summary is None:
        raise HeadraceError(f"{place.run}: the run ended without a summary. See {place.lab / 'train.log'}.")
    texts = held_out_texts(corpus, table.judge_bytes)
    trained = read_config(place.run)  # what the run chose for itself
    assert trained is not None
    own_context = trained.training.sequence_length
    context = own_context if request["context"] == "own" else request["context"]
    found = judge(place.run, texts, context, own_context)
    result = {
        **{key: request[key] for key in ("variant", "corpus", "budget", "seed")},
        **asdict(found),
        **{key: getattr(summary, key) for key in ("parameters", "steps", "tokens", "train_seconds")},
        "tokens_per_second": summary.tokens_per_second,
        "taken_by_others_percent": summary.processor_taken_percent,
        "epochs": summary.corpus.get("epochs"),
    }
    place.write(RESULT, result)
    return result


class TrainingProcess:
    """`headrace train` in a process of its own, which stops and saves when it is asked to or its parent is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.is_stopping = False

    def __call__(self, config: Path, run: Path) -> None:
        if self.is_stopping:
            raise StoppedError(f"{run}: not begun. The same command goes on with it.")
        log = config.parent / "train.log"
        command = [sys.executable, "-m", "lab.training", "train", str(config)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_PACKAGE), os.environ.get("PYTHONPATH", "")])}
        with open(log, "ab") as words:
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=words, stderr=words, env=environment, start_new_session=True
            )  # in a session of its own: a Ctrl-C of the terminal reaches it once, by way of this process
            try:
                if self.is_stopping:  # asked while it was being started
                    process.terminate()
                code = process.wait()
            finally:
                process.kill()
                process.wait()
                assert process.stdin is not None
                process.stdin.close()
        if self.is_stopping or code == EXIT_STOPPED:
            raise StoppedError(f"{run}: stopped. The same command goes on with it.")
        if code:
            raise HeadraceError(f"{run}: {_last_words(log, code)} See {log}.")

    def stop(self) -> None:
        """Ask the run to save and end."""
        self.is_stopping = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


def _last_words(log: Path, code: int) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if code < 0:
        return f"killed by {signal.Signals(-code).name}."
    return lines[-1] if lines else f"`headrace train` ended with exit code {code}."
