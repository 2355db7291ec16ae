"""Fitting the law of the loss and the pace of training to finished cells: `python benchmarks/lab fit FOLDER…`.

Every corpus has a floor of its own; all other coefficients are shared by the corpora. Exponents come from a grid.
What is printed goes into src/headrace/perf/loss_law.py and pace.py by hand, with the table of errors into docs/LOG.md.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.errors import UsageError
from headrace.models.counts import count
from headrace.perf.loss_law import Exposure
from headrace.perf.pace import fit_pace, flops_per_token
from headrace.run.config import Config
from headrace.stages import UPDATING
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import update_flops

CAPACITY = (0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
TEXT = (0.2, 0.25, 0.3, 0.35, 0.4, 0.5)


@dataclass(frozen=True)
class Point:
    """A finished cell, as the laws see it."""

    name: str
    corpus: str
    exposure: Exposure
    bits_per_byte: float
    flops_per_token: float
    num_layers: int
    seconds_per_token: float


def read_points(folders: Iterable[Path]) -> list[Point]:
    """Return the finished cells below these folders."""
    found = sorted(path for folder in folders for path in folder.glob("**/lab/result.json"))
    if not found:
        raise UsageError("no finished cell in these folders. Name the folder of a table's runs.")
    return [_point(path.parent.parent) for path in found]


def _point(run: Path) -> Point:
    result = json.loads((run / "lab" / "result.json").read_bytes())
    summary = json.loads((run / "summary.json").read_bytes())
    config = Config.model_validate(json.loads((run / "config.json").read_bytes()))
    corpus, training, model = summary["corpus"], config.training, config.model
    exposure = Exposure(
        parameters=result["parameters"],
        block_parameters=count(model, training.sequence_length).block_weights,
        vocab_size=model.vocab_size,
        tokens=result["tokens"],
        unique_tokens=corpus["epoch_tokens"],
        bytes_per_token=corpus["bytes"] / corpus["tokens"],
    )
    in_update = update_flops(model, training.optimizer, Execution.from_config(training).dtype)
    seconds = sum(summary["seconds"].get(stage, 0.0) for stage in UPDATING)
    return Point(
        f"{result['corpus']} {result['budget']} {result['variant']} {result['seed']}",
        result["corpus"],
        exposure,
        result["bits_per_byte"],
        flops_per_token(model, training.mean_window, training.tokens_per_update, in_update, training.sampled_tokens),
        model.num_layers,
        seconds / result["tokens"],
    )


def fit(points: Sequence[Point]) -> tuple[dict[str, float], np.ndarray]:
    """Return the coefficients, exponents and floors that fit best, and the error of each point in bits per byte."""
    corpora = sorted({point.corpus for point in points})
    losses = np.array([point.bits_per_byte for point in points])
    floors = np.array([[float(point.corpus == corpus) for corpus in corpora] for point in points])
    best: tuple[float, dict[str, float], np.ndarray] | None = None
    for capacity, text in itertools.product(CAPACITY, TEXT):
        terms = np.array([point.exposure.terms(capacity, text)[1:] for point in points])
        coefficients, errors = _fit_nonnegative(np.hstack([terms, floors]), losses, len(terms[0]))
        score = float((errors**2).sum())
        if best is None or score < best[0]:
            names = [
                "capacity",
                "text",
                "vocabulary",
                "rare",
                "overfitting",
                *(f"floor of {corpus}" for corpus in corpora),
            ]
            exponents = {"capacity exponent": capacity, "text exponent": text}
            best = score, exponents | dict(zip(names, map(float, coefficients), strict=True)), errors
    assert best is not None
    return best[1], best[2]


def _fit_nonnegative(terms: np.ndarray, values: np.ndarray, num_signed: int) -> tuple[np.ndarray, np.ndarray]:
    """Fit by least squares; of the first `num_signed` coefficients, those that come out negative are left out."""
    used = list(range(terms.shape[1]))
    while True:
        found = np.linalg.lstsq(terms[:, used], values, rcond=None)[0]
        negative = [used[i] for i in range(len(used)) if used[i] < num_signed and found[i] < 0]
        if not negative:
            break
        used = [index for index in used if index not in negative]
    coefficients = np.zeros(terms.shape[1])
    coefficients[used] = found
    return coefficients, terms @ coefficients - values


def show_fit(folders: Iterable[Path]) -> None:
    """Print both laws, and what each says of every cell."""
    points = read_points(folders)
    laws, errors = fit(points)
    pace = fit_pace([(point.flops_per_token, point.num_layers, point.seconds_per_token) for point in points])
    for point, error in zip(points, errors, strict=True):
        speed = pace.seconds_per_token(point.flops_per_token, point.num_layers) / point.seconds_per_token - 1
        print(
            f"{point.name:60} {point.bits_per_byte:.4f} error {error:+.4f}; {point.exposure.parameters / 1e6:.2f}M"
            f" {point.exposure.tokens / 1e6:.1f}M tokens, {point.exposure.epochs:.1f} epochs;"
            f" {1e6 * point.seconds_per_token:.1f} us per token, {speed:+.0%}"
        )
    print(f"root mean square error {float(np.sqrt((errors**2).mean())):.4f} bits per byte")
    print(json.dumps({**laws, "seconds per FLOP": pace.per_flop, "seconds per layer": pace.per_layer}))
