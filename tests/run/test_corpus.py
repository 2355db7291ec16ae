"""The text of a run: training and validation each keep their tokens in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import headrace as hr
from tests.conftest import make_text
from tests.run.tiny_run import settings


def test_validation_text_leaves_the_training_cache_alone(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(make_text(20_000, seed=1))
    (tmp_path / "held_out.txt").write_text(make_text(6_000, seed=2))
    values = settings(tmp_path / "train.txt", tmp_path / "run", **{"training.max_steps": 2})
    hr.train(**values, **{"data.validation_sources": [str(tmp_path / "held_out.txt")]})
    training, validation = hr.Cache.open(tmp_path / "cache"), hr.Cache.open(tmp_path / "cache" / "validation")
    assert [segment.path for segment in training.segments] == [str(tmp_path / "train.txt")]
    assert [segment.path for segment in validation.segments] == [str(tmp_path / "held_out.txt")]
    again = hr.prepare([tmp_path / "train.txt"], tokenizer="byte", out=tmp_path / "cache")  # a folder that is still its
    assert again.num_tokens == training.num_tokens
