"""Samples of a run: their prompts, the same before and after, and never a special token in them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headrace as hr
from headrace.generation.decoding import generate, ids_without_text
from headrace.generation.prompts import BETWEEN_SAMPLES
from headrace.generation.sampling import Sampling
from headrace.models.config import ModelConfig
from headrace.models.network import build
from tests.conftest import make_text
from tests.run.tiny_run import settings

pytestmark = pytest.mark.usefixtures("whole_samples")
QUICK = {"training.max_steps": 2, "training.evaluate_every": 2}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(make_text(40_000))
    return path


def test_prompts_come_from_the_validation_text(corpus: Path, tmp_path: Path) -> None:
    run = hr.train(**settings(corpus, tmp_path / "run", **QUICK))
    [prompt] = run.prompts
    assert len(prompt) > 4
    assert prompt in corpus.read_text()
    assert run.first_sample.startswith(prompt)
    assert run.last_sample.startswith(prompt)
    assert run.first_sample != run.last_sample
    more = settings(corpus, tmp_path / "run", **QUICK, **{"run.resume": True}) | {"training.max_steps": 4}
    assert hr.train(**more).prompts == [prompt], "a resumed run goes on with it"


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ({"training.prompts": ["the mill", "1984"]}, ["the mill", "1984"]),
        ({"training.prompt": "the "}, ["the "]),
        ({"training.prompt": "not this", "training.prompts": ["this"]}, ["this"]),
    ],
)
def test_given_prompts_are_used(corpus: Path, tmp_path: Path, given: dict[str, object], prompts: list[str]) -> None:
    run = hr.train(**settings(corpus, tmp_path / "run", **QUICK, **given))
    assert run.prompts == prompts
    for sample in (run.first_sample, run.last_sample):
        parts = sample.split(BETWEEN_SAMPLES)
        assert [part[: len(prompt)] for part, prompt in zip(parts, prompts, strict=True)] == prompts


def test_special_tokens_are_never_drawn(corpus: Path, tmp_path: Path) -> None:
    tokenizer = hr.prepare([corpus], tokenizer="char", out=tmp_path / "cache").tokenizer
    size = tokenizer.vocab_size + 3  # a network may have more ids than its tokenizer
    never = ids_without_text(tokenizer, size)
    assert set(never) == {tokenizer.special_tokens["<|unknown|>"], size - 3, size - 2, size - 1}
    network = build(ModelConfig(d_model=16, num_heads=2, num_layers=1, vocab_size=size, context=32), seed=1)
    with torch.no_grad():
        network.embedding.weight[never] *= 50  # what would be drawn at once
    drawn = [row[0] for row in generate(network, [5], Sampling(max_tokens=60, temperature=1.0), -1, never)]
    assert len(drawn) == 60
    assert set(drawn).isdisjoint(never)
