"""A run that takes a moment and is the same every time: its configuration, its files, and how to tamper with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.files import read_checked_json, write_checked_json

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


def change_state(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    state = read_checked_json(checkpoint / "state.json")
    change(state)
    write_checked_json(checkpoint / "state.json", state)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]
