"""A checkpoint's tokenizer files: what Hugging Face users get is what the model was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.training.checkpoint import Checkpoints
from tests.conftest import make_text
from tests.data.tokens.tokenizer_kinds import KINDS, tokenizer_of_kind

TEXT = make_text(3000, seed=8) + " Ünïcödé\n\n\tİt's 水車。  [x] <s>"


def export(folder: Path, kind: str, **shape: Any) -> Path:
    size = tokenizer_of_kind(kind).vocab_size
    network = build(ModelConfig(d_model=16, num_heads=1, num_layers=1, vocab_size=size, context=16, **shape))
    return Checkpoints(folder).save(1, network, {}, tokenizer_of_kind(kind), {}, True)


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")  # transformers' own deprecations
def test_auto_tokenizer_gives_the_ids_of_training(tmp_path: Path, kind: str, arch: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizer_of_kind(kind)
    theirs = transformers.AutoTokenizer.from_pretrained(export(tmp_path, kind, arch=arch))
    text = TEXT.replace("<s>", "") if "<s>" in tokenizer.special_tokens else TEXT
    assert theirs(text)["input_ids"] == tokenizer.encode(text).tolist()
    assert theirs.decode(tokenizer.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    assert theirs.eos_token_id == theirs.bos_token_id == tokenizer.end_of_text_id
    assert theirs.pad_token == {"unigram": "<pad>", "bert": "[PAD]", "words": "[PAD]"}.get(kind, tokenizer.end_of_text)
    batch = theirs(["the mill", "wheel"], padding=True)["input_ids"]
    assert len(batch[0]) == len(batch[1])


@pytest.mark.filterwarnings("ignore")  # transformers' own deprecations
def test_generation_stops_and_pads_by_what_the_checkpoint_says(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = export(tmp_path, "unigram")
    tokenizer = tokenizer_of_kind("unigram")
    expected = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    assert tokenizer.end_of_text_id == 1
    assert json.loads((folder / "generation_config.json").read_text()) == expected
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert {name: getattr(model.generation_config, name) for name in expected} == expected
    assert model.config.pad_token_id == 0
