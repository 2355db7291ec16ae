"""Evaluations by the native library, in the memory of the steps."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.distributed.replicas import Replica
from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.native.library import why_missing
from headrace.training.evaluate import Evaluator
from headrace.training.execution import Execution
from tests.conftest import make_text

pytestmark = pytest.mark.skipif(bool(why_missing()), reason="the native library was not built")


@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("packing", ["stream", "document"])
def test_native_evaluations_are_those_of_pytorch(
    tmp_path: Path, packing: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.native.engine.ROWS_AT_ONCE", 48)
    (tmp_path / "a.txt").write_text(make_text(3000))
    network = build(ModelConfig(d_model=32, num_layers=2, vocab_size=257, context=16), seed=3)
    with hr.Loader(
        tmp_path / "a.txt", 4, 16, tokenizer="byte", packing=packing, cache_dir=tmp_path / "cache"
    ) as loader:
        expected = Evaluator(loader, Execution(4))(network, 0, window=window)
        native = Evaluator(loader, Execution(4, engine="native"))
        replica = Replica(network)
        found = native(network, 0, replica, window)
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)
        assert found.num_tokens == expected.num_tokens
        assert native.measure(network, 0.1, replica) > 0
        assert native(network, 0, window=window).loss == pytest.approx(expected.loss, rel=1e-5), (
            "without a replica, by PyTorch"
        )
        short_of_memory = Evaluator(loader, Execution(4, engine="native"), has_memory=False)
        assert short_of_memory._native_step(replica) is None
