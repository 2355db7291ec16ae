"""A run that takes a moment and is the same every time: its configuration, its files, and how to tamper with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headrace.files import read_checked_json, write_checked_json
from headrace.run.config import Config, Layers
from headrace.run.pretraining import Pretraining
from tests.conftest import make_text

TINY: dict[str, Any] = {
    "model.d_model": 32,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "training.max_length": 32,
    "training.batch_size": 4,
    "training.micro_batch_size": 2,
    "training.max_steps": 12,
    "training.evaluate_every": 4,
    "training.precision": "float32",
    "training.matmul": "default",
    "training.attention": "fused",
    "training.engine": "torch",
    "training.threads": 1,
    "data.tokenizer": "byte",
}


def settings(corpus: Path, out: Path, **changes: Any) -> dict[str, Any]:
    places = {
        "data.sources": [str(corpus)],
        "data.cache_dir": str(corpus.parent / "cache"),
        "run.out": str(out),
    }
    return {**TINY, **places, **changes}


def configured(corpus: Path, name: str, **changes: Any) -> Config:
    """Return the configuration of a run of this name beside its corpus."""
    layers = Layers()
    layers.add(settings(corpus, corpus.parent / name, **changes), "the test")
    return layers.build()


def train_until(corpus: Path, name: str, stop_after: int | None = None, **changes: Any) -> Pretraining:
    """Train a run of this name beside its corpus, to its end or until a step."""
    with Pretraining(configured(corpus, name, **changes)) as pretraining:
        for info in pretraining.steps():
            if info.step == stop_after:
                break
    return pretraining


def saved_tensors(corpus: Path, name: str, file: str) -> dict[str, Tensor]:
    """Return the tensors in a file of a run's last checkpoint."""
    return dict(load_file(corpus.parent / name / "checkpoints" / "last" / file))


def are_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Return whether tensors have the same names and the same numbers."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def fresh_corpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a text to train on; nothing is remembered yet, and the peak is known without measuring."""
    monkeypatch.setenv("HEADRACE_CACHE", str(folder / "user-cache"))
    monkeypatch.setattr("headrace.run.environment.measure_peak_flops", lambda *_: 1e9)
    path = folder / "corpus.txt"
    path.write_text(make_text(30_000))
    return path


def change_state(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    state = read_checked_json(checkpoint / "state.json")
    change(state)
    write_checked_json(checkpoint / "state.json", state)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]
