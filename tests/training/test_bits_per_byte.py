"""Bits per byte are those of the text that the tokens came from, whatever the tokenizer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.data.cache.byte_counts import bytes_per_id
from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.training.checkpoint import Checkpoints
from headrace.training.evaluate import Evaluator
from headrace.training.execution import Execution
from tests.conftest import make_text
from tests.data.tokens.tokenizer_kinds import KINDS, tokenizer_of_kind

CONTEXT = 64


@pytest.mark.parametrize("document", ["file", "line"])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_stand_for_the_bytes_of_their_text(tmp_path: Path, kind: str, document: str) -> None:
    """Also for text that the lengths were not measured on, and where documents are short."""
    (tmp_path / "a.txt").write_text(make_text(200_000, seed=1))
    cache = hr.prepare(
        [{"path": str(tmp_path / "a.txt"), "document": document}], tokenizer_of_kind(kind), tmp_path / "cache"
    )
    other = make_text(100_000, seed=2)
    texts = other.splitlines(keepends=True) if document == "line" else [other]
    texts = [text for text in texts if text.strip()]
    ids = cache.tokenizer.encoder().encode([text.encode() for text in texts])[0]
    counted = bytes_per_id(cache)[ids].sum()
    assert counted == pytest.approx(sum(len(text.encode()) for text in texts), rel=0.01)


def test_lengths_need_no_text_where_the_tokens_tell(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(20_000))
    for kind in ("gpt2", "byte", "bpe:400", "char"):
        cache = hr.prepare([tmp_path / "a.txt"], tokenizer_of_kind(kind), tmp_path / kind.replace(":", ""))
        text = make_text(3000, seed=5)
        assert bytes_per_id(cache)[cache.tokenizer.encode(text)].sum() == len(text.encode())
    llama = hr.prepare([tmp_path / "a.txt"], tokenizer_of_kind("llama"), tmp_path / "llama")
    expected = bytes_per_id(llama)
    (tmp_path / "a.txt").unlink()
    np.testing.assert_allclose(bytes_per_id(llama), expected, rtol=0.01)  # the decoder's own lengths


def test_evaluations_in_windows_are_those_of_sequences_of_that_length(tmp_path: Path) -> None:
    """Also where windows do not divide sequences: 40 tokens are windows of 16, 16 and 8."""
    (tmp_path / "a.txt").write_text(make_text(4000))
    network = build(ModelConfig(d_model=32, num_heads=2, num_layers=1, vocab_size=257, context=40), seed=3)
    options = {"shuffle": False, "tokenizer": "byte", "cache_dir": tmp_path / "cache"}
    with hr.Loader(tmp_path / "a.txt", 2, 40, **options) as loader:
        evaluator = Evaluator(loader, Execution(2))
        assert evaluator(network, 0, window=40) == evaluator(network, 0)
        found = evaluator(network, 0, window=16)
        [sample] = loader.sample(0)
    assert sample.batch is not None and found.num_tokens == sample.batch.num_tokens
    total = 0.0
    for start, stop in ((0, 16), (16, 32), (32, 40)):
        inputs, targets = (
            torch.from_numpy(array[:, start:stop].astype(np.int64))
            for array in (sample.batch.inputs, sample.batch.targets)
        )
        with torch.no_grad():
            logits = network.logits(network(inputs))
        total += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
    assert found.loss == pytest.approx(total / found.num_tokens, rel=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "unigram", "bert"])
@pytest.mark.filterwarnings("ignore")  # transformers' own deprecations
def test_bits_per_byte_are_lm_evals(tmp_path: Path, kind: str) -> None:
    """As lm-eval's bits_per_byte: log-likelihood of all tokens in disjoint windows, over the bytes of the text."""
    transformers = pytest.importorskip("transformers")
    text = make_text(20_000, seed=4)
    (tmp_path / "a.txt").write_text(text)
    tokenizer = tokenizer_of_kind(kind)
    shape = ModelConfig(d_model=32, num_heads=2, num_layers=1, vocab_size=tokenizer.vocab_size, context=CONTEXT)
    network = build(shape, seed=3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    folder = Checkpoints(tmp_path / "checkpoints").save(1, network, {}, tokenizer, {}, True)
    with hr.Loader(
        tmp_path / "a.txt", 8, CONTEXT, shuffle=False, tokenizer=tokenizer, cache_dir=tmp_path / "cache"
    ) as loader:
        ours = Evaluator(loader, Execution(8))(network, 0)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [their_tokenizer.eos_token_id, *their_tokenizer(text, truncation=False)["input_ids"]]
    whole = (len(ids) - 1) // CONTEXT * CONTEXT
    windows = torch.tensor(ids[: whole + 1]).unfold(0, CONTEXT + 1, CONTEXT)
    with torch.no_grad():
        chances = theirs(windows[:, :-1]).logits.log_softmax(-1)
    nats = -float(chances.gather(2, windows[:, 1:, None]).mean()) * (len(ids) - 1)
    assert ours.bits_per_byte == pytest.approx(nats / len(text.encode()) / math.log(2), rel=0.01)
