"""lm-evaluation-harness on a checkpoint, with the task and the command of docs/how-to/evaluate.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from tests.conftest import make_text
from tests.docs.pages import ROOT, blocks
from tests.run.tiny_run import settings

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("tokenizer", ["byte", "bpe:300"])
def test_the_harness_agrees_on_bits_per_byte(tmp_path: Path, tokenizer: str) -> None:
    pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install 'lm_eval[hf]'")
    (tmp_path / "corpus.txt").write_text(make_text(40_000))
    (tmp_path / "held-out.txt").write_text(make_text(8_000, seed=1))
    options = {"data.tokenizer": tokenizer, "data.validation_sources": [str(tmp_path / "held-out.txt")]}
    run = hr.train(
        **settings(tmp_path / "corpus.txt", tmp_path / "runs" / "evaluated", **options),
        **{"training.evaluation_tokens": 0},
    )
    page = blocks(ROOT / "docs" / "how-to" / "evaluate.md")
    task = next(block for block in page if block.title)
    (tmp_path / task.title).write_text(task.text)
    words = next(words for block in page if block.language == "sh" for words in block.commands if words[0] == "lm_eval")
    subprocess.run(
        [sys.executable, "-m", "lm_eval", *words[1:], "--output_path", "results"],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")},
        check=True,
    )
    found = json.loads(next((tmp_path / "results").rglob("results_*.json")).read_text())
    bits = found["results"]["held-out"]["bits_per_byte,none"]
    assert bits == pytest.approx(run.validation_bits_per_byte, rel=0.01)
