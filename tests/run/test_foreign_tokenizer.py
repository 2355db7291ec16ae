"""A whole run with somebody else's tokenizer: it says what it does to text, and generates text as it was learned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from headrace.run.directory import read_run_config
from tests.conftest import make_text
from tests.data.tokens.tokenizer_kinds import kind_json
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]


def test_a_run_with_a_unigram_tokenizer(tmp_path: Path, command: Command) -> None:
    (tmp_path / "tokenizer.json").write_text(kind_json("unigram"))
    (tmp_path / "a.txt").write_text(make_text(30_000))
    values = settings(
        tmp_path / "a.txt", tmp_path / "run", **{"data.tokenizer": str(tmp_path / "tokenizer.json")},
        **{"training.max_steps": 2, "training.evaluate_every": 2, "data.special_tokens_in_text": "special"},
    )  # fmt: skip
    code, out, err = command("train", *(f"{key}={json.dumps(value)}" for key, value in values.items()), "--json")
    assert code == 0, err
    assert "normalizer NFKC" in " ".join(err.split())
    assert json.loads(out.splitlines()[-1])["steps"] == 2
    code, out, err = command("generate", tmp_path / "run", "--prompt", "the mill", "--max-tokens", 8, "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["samples"][0].startswith("the mill")
    state = json.loads((tmp_path / "run" / "checkpoints" / "last" / "state.json").read_text())
    assert state["config"]["data"]["special_tokens_in_text"] == "special"
    checkpoint = tmp_path / "run" / "checkpoints" / "last"
    (checkpoint / "tokenizer.json").write_bytes(b"\xff")
    code, _, err = command("generate", checkpoint, "--prompt", "the mill")
    assert code == 1
    assert "Traceback" not in err


def test_a_run_from_before_the_choice_goes_on_as_it_began(tmp_path: Path) -> None:
    """Special tokens were looked for in text then: their tokens are those of special_tokens_in_text=special."""
    (tmp_path / "config.json").write_text(json.dumps({"data": {"tokenizer": "bpe:400"}}))
    assert read_run_config(tmp_path)["data"]["special_tokens_in_text"] == "special"
