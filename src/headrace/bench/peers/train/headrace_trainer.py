"""headrace: the trainer as `headrace train` runs it, with AdamW and in float32 like the others.

The first run measures how to compute a step, which takes a minute and is not timed; the next ones do as it did, as a
resumed run would.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.run.config import Config
from headrace.run.pretraining import Pretraining


def train(job: dict[str, Any], report: Callable[[float], None]) -> int:
    training = {
        "batch_size": job["batch_size"], "max_length": job["sequence_length"], "learning_rate": job["learning_rate"],
        "optimizer": "adamw", "weight_decay": 0.0, "dropout": 0.0, "precision": "float32", "warmup": 0.0,
        "decay": 0.001, "max_steps": 100_000, "evaluate_every": 100_000, "save_every": 100_000,
    }  # fmt: skip
    chosen = Path(job["weights"]) / "chosen.json"
    if chosen.exists():
        training |= json.loads(chosen.read_text())
    data = {
        "sources": [job["text"]], "cache_dir": job["cache"], "tokenizer": job["tokenizer"], "validation_fraction": 0.0,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        config = {"model": job["model"], "training": training, "data": data, "run": {"out": f"{out}/run"}}
        with Pretraining(Config.model_validate(config)) as pretraining:
            resolved = pretraining.config.training
            keys = ("micro_batch_size", "matmul", "attention")
            chosen.write_text(json.dumps({key: getattr(resolved, key) for key in keys}))
            for info in pretraining.steps():
                report(info.loss)
                if info.step == job["num_steps"]:
                    break
            return sum(parameter.numel() for parameter in pretraining.network.parameters())
