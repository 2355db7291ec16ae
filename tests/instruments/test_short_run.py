"""Short runs are whole runs, and measure what a proposal is made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.instruments.short_run import train_briefly
from headrace.run.config import Layers
from tests.conftest import make_text


def test_a_short_run_is_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "corpus.txt").write_text(make_text(400_000))
    layers = Layers()
    layers.add({"training.threads": 1, "training.precision": "float32", "training.max_length": 32}, "test")
    layers.add({"model.d_model": 32, "model.num_layers": 1, "data.tokenizer": "byte"}, "test")
    layers.add({"data.sources": [str(tmp_path / "corpus.txt")]}, "test")
    short = train_briefly(layers.build(), seconds=0.5, train_bytes=380_000)
    assert short.exposure.vocab_size == 257
    assert short.exposure.bytes_per_token == pytest.approx(1.0, abs=0.02)
    assert short.exposure.tokens > 0
    assert 0 < short.bits_per_byte < 9
    assert short.seconds_per_token > 0
    again = train_briefly(layers.build(), seconds=0.2, train_bytes=380_000, before=short)
    assert (again.precision, again.matmul) == (short.precision, short.matmul)
