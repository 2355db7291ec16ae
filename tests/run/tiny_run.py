"""The configuration of a run that takes a moment and is the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def settings(corpus: Path, out: Path, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
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
        "training.threads": 1,
        "data.sources": [str(corpus)],
        "data.tokenizer": "byte",
        "data.cache_dir": str(corpus.parent / "cache"),
        "run.out": str(out),
    }
    return {**values, **changes}
