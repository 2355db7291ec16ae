"""A trial measures a configuration in a process of its own, and says why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ChildError
from headrace.instruments.trial import Trial
from headrace.run.config import Config
from tests.conftest import make_text


def config(folder: Path) -> Config:
    (folder / "corpus.txt").write_text(make_text(20_000))
    training = {
        "max_length": 16,
        "batch_size": 4,
        "threads": 1,
        "precision": "float32",
        "matmul": "default",
        "attention": "fused",
    }
    return Config.model_validate(
        {
            "model": {"d_model": 32, "num_heads": 2, "num_layers": 1, "vocab_size": 257, "context": 16},
            "training": {**training, "micro_batch_size": 2},
            "data": {
                "sources": [str(folder / "corpus.txt")], "tokenizer": "byte", "cache_dir": str(folder / "cache"),
            },
        }
    )  # fmt: skip


def test_a_trial_measures_whenever_it_is_asked(tmp_path: Path) -> None:
    with Trial(config(tmp_path)) as trial:
        costs = [trial.measure() for _ in range(2)]
        assert (trial.execution.micro_batch_size, trial.execution.threads) == (2, 1)
    assert all(cost.seconds_per_token > 0 and cost.peak_bytes > 10 << 20 for cost in costs)


def test_a_trial_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    without_text = config(tmp_path)
    without_text.data.sources = [str(tmp_path / "nowhere.txt")]
    with pytest.raises(ChildError, match=r"^\S*nowhere\.txt"):
        Trial(without_text)
