"""A tiny network and batches for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.data.batch import Batch
from headrace.models.config import ModelConfig
from headrace.models.network import Network, build
from headrace.training.loop import Findings
from headrace.training.pauses import Due, EvaluationCosts


def small(arch: Any = "qwen3") -> Network:
    return build(ModelConfig(arch=arch, d_model=32, num_heads=2, num_layers=2, vocab_size=50, context=16), seed=1)


def random_batch(seed: int = 0, masked: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 50, (8, 17)).astype(np.uint16)
    mask = rng.random((8, 16)) < 0.7 if masked else None
    return Batch(0, tokens[:, :-1], tokens[:, 1:], None, mask)


class Nothing:
    """An evaluation that finds nothing, and saves that are not made."""

    written_s = 0.0

    def measure(self, seconds: float) -> EvaluationCosts:
        return EvaluationCosts()

    def calibrate(self, num_tokens: int) -> None:
        pass

    def evaluate(self, due: Due, judged_tokens: int) -> Findings:
        return Findings()

    def begin(self, is_last: bool) -> None:
        pass

    def seal(self, is_best: bool) -> None:
        pass

    def check(self) -> None:
        pass

    def wait(self) -> None:
        pass
