"""Runs that compare a part of the vocabulary, and whose tokens learn from related ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.native.library import why_missing
from headrace.run.pretraining import Pretraining
from tests.run.tiny_run import are_same, fresh_corpus, losses, saved_tensors, train_until

CHANGES: dict[str, Any] = {
    "data.tokenizer": "bpe:1500", "training.sampled_tokens": 64, "training.related_tokens": 0.5,
    "training.save_every": 8, "training.max_steps": 24, "training.evaluate_every": 12,
}  # fmt: skip
NATIVE = {"training.engine": "native", "training.micro_batch_size": 4}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh_corpus(tmp_path, monkeypatch)


def train(corpus: Path, name: str, stop_after: int | None = None, **changes: Any) -> Pretraining:
    return train_until(corpus, name, stop_after, **{**CHANGES, **changes})


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_resumed_run_ends_in_the_same_weights(corpus: Path, engine: str) -> None:
    if engine == "native" and why_missing():
        pytest.skip("the native library was not built")
    changes = NATIVE if engine == "native" else {}
    whole = train(corpus, "whole", **changes)
    assert whole.counts.forward_flops_per_token["head"] < 2 * 32 * whole.config.model.vocab_size / 2
    train(corpus, "broken", stop_after=20, **changes)
    train(corpus, "broken", **changes, **{"run.resume": True})
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert are_same(saved_tensors(corpus, "whole", file), saved_tensors(corpus, "broken", file)), file
    assert losses(corpus.parent / "whole") == losses(corpus.parent / "broken")


def test_losses_are_comparable_with_those_over_the_whole_vocabulary(corpus: Path) -> None:
    """Updates estimate the loss from what they drew; evaluations compare all tokens."""
    sampled = train(corpus, "sampled")
    plain = train(corpus, "plain", **{"training.sampled_tokens": 0})
    first = [[loss for _, loss in losses(corpus.parent / name)[:4]] for name in ("sampled", "plain")]
    assert first[0] == pytest.approx(first[1], abs=0.05)
    assert sampled.run.validation_loss == pytest.approx(plain.run.validation_loss, abs=0.4)
