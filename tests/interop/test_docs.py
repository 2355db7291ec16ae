"""The snippets of docs/neighbours.md, one after the other, as a newcomer would type them; only smaller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import make_text

GUIDE = Path(__file__).parents[2] / "docs" / "neighbours.md"
SMALLER = {
    "bpe:16000": "bpe:300", "1000": "2", "500": "2", "=256": "=16", '": 256': '": 16', "=32": "=8", '": 32': '": 8',
    "batch(32": "batch(8", "=128": "=16", '": 128': '": 16', 'tokenizer="gpt2"': 'tokenizer="cache/tokenizer.json"',
}  # fmt: skip


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.filterwarnings("ignore")  # of the neighbours
def test_the_guide_works_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("transformers", "accelerate", "jax", "grain"):
        pytest.importorskip(library, reason="pip install 'headrace[dev]'")
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    Path("corpus/text.txt").write_text(make_text(60_000))
    names: dict[str, Any] = {}
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(snippets) == 6
    for number, snippet in enumerate(snippets):
        for large, small in SMALLER.items():
            snippet = snippet.replace(large, small)
        if "train.bin" in snippet:
            _write_token_file(names["cache"], Path("openwebtext/train.bin"))
        exec(compile(snippet, f"{GUIDE.name}, snippet {number}", "exec"), names)
    assert next(names["loader"]).inputs.shape == (8, 16)
    names["loader"].close()


def _write_token_file(cache: Any, path: Path) -> None:
    path.parent.mkdir()
    with open(path, "wb") as file:
        for segment in range(len(cache.segments)):
            for tokens in cache.tokens(segment, 0, cache.entry(segment).num_tokens):
                tokens.tofile(file)
