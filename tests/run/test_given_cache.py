"""`headrace train CACHE`: a prepared cache is trained on as it is, with its tokenizer, even if its text is gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from tests.conftest import make_text

Command = Callable[..., tuple[int, str, str]]
TINY = (
    "model.d_model=16", "model.num_heads=1", "model.num_layers=1", "training.max_length=8", "training.batch_size=2",
    "training.micro_batch_size=1", "training.max_steps=2", "training.precision=float32", "training.matmul=default",
    "training.threads=1", "training.attention=fused",
)  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path) -> hr.Cache:
    (tmp_path / "a.txt").write_text(make_text(4000))
    return hr.prepare(tmp_path / "a.txt", tokenizer="bpe:300", out=tmp_path / "cache")


def test_training_on_a_cache_is_training_on_its_text(command: Command, cache: hr.Cache, tmp_path: Path) -> None:
    arguments = (tmp_path / "a.txt", "data.tokenizer=bpe:300", f"data.cache_dir={cache.path}")
    code, out, err = command("train", *arguments, *TINY, "--out", tmp_path / "text", "--json")
    assert code == 0, err
    (tmp_path / "a.txt").unlink()
    code, from_cache, err = command("train", cache.path, *TINY, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    losses = [json.loads(said.splitlines()[-1])["train_loss"] for said in (out, from_cache)]
    assert losses[0] == losses[1]
    resumed = ("--resume", tmp_path / "run", "training.max_steps=3", "--json")
    assert json.loads(command("train", *resumed)[1].splitlines()[-1])["steps"] == 3
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["tokenizer"] == "bpe:300"
    text = hr.generate(tmp_path / "run", "the ", max_tokens=2)
    assert isinstance(text, str)
    assert text.startswith("the ")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["data.tokenizer=char"], "built with the tokenizer 'bpe:300', not 'char'"),
        (["a.txt"], "a token cache, which is trained on alone"),
        (["data.deduplicate=exact"], "selected when this cache was built. Leave data.deduplicate out"),
        (["data.min_document_bytes=9"], "selected when this cache was built. Leave data.min_document_bytes out"),
    ],
)
def test_a_cache_goes_with_nothing_else(command: Command, cache: hr.Cache, more: list[str], says: str) -> None:
    code, _, err = command("train", cache.path, *more, *TINY)
    assert code == 2
    assert says in " ".join(err.split())


def test_plan_takes_a_cache_and_a_proposal_asks_for_text(command: Command, cache: hr.Cache) -> None:
    code, out, err = command("config", cache.path, "--json")
    assert code == 0, err
    used = json.loads(out.splitlines()[-1])["used"]
    assert (used["data.tokenizer"], used["model.vocab_size"]) == ("bpe:300", 300)
    code, _, err = command("plan", "--minutes", 1, cache.path)
    assert code == 2
    assert "Name the text instead" in err


def test_a_run_is_not_written_into_its_own_text(command: Command, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text(make_text(4000))
    (corpus / "mine.tmp").write_text("not headrace's")
    code, _, err = command("train", corpus, *TINY, "data.tokenizer=byte", "--out", f"{corpus}/")
    assert code == 2
    assert "this folder holds the text. Choose another, such as --out runs/corpus" in err
    assert sorted(path.name for path in corpus.iterdir()) == ["a.txt", "mine.tmp"]
    code, _, err = command("train", corpus / "a.txt", *TINY, "data.tokenizer=byte", "--out", corpus)
    assert code == 0, err
    assert (corpus / "mine.tmp").exists(), "only what a run left behind is removed"
