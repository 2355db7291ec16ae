"""Small models with random weights that transformers makes and saves, with a tokenizer beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.data.tokens.tokenizers import Tokenizer, load_tokenizer
from tests.conftest import make_text

TEXT = make_text(20_000)
VOCABULARY = 300
ROTARY = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2 untied": ("GPT2", {**GPT2, "tie_word_embeddings": False, "n_inner": 40, "layer_norm_epsilon": 1e-3}),
    "qwen3": ("Qwen3", {**ROTARY, "num_key_value_heads": 4, "head_dim": 8, "tie_word_embeddings": True}),
    "qwen3 grouped": ("Qwen3", {**ROTARY, "num_key_value_heads": 2, "head_dim": 12, "rope_theta": 1e6}),
    "llama": ("Llama", {**ROTARY, "rms_norm_eps": 1e-5}),
    "llama grouped": ("Llama", {**ROTARY, "num_key_value_heads": 1, "tie_word_embeddings": True, "rope_theta": 5e4}),
    "mistral": ("Mistral", {**ROTARY, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": None}),
}
"""Classes of transformers and their shapes, by name."""


def make_model(kind: str, **changes: Any) -> Any:
    """Return a model of transformers with weights that are far from zero."""
    transformers = pytest.importorskip("transformers")
    name, values = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**{**values, **changes})
    torch.manual_seed(3)
    model = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def save_model(folder: Path, model: Any, **options: Any) -> Path:
    """Save a model as its users do, and its tokenizer."""
    model.save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_text(tokenizer().json)
    return folder


def tokenizer() -> Tokenizer:
    return load_tokenizer(f"bpe:{VOCABULARY}", lambda: iter([TEXT.encode()]))


def change_config(folder: Path, **changes: Any) -> None:
    """Change values of a config.json; None removes one."""
    values = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in {**values, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def logits_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(tokens).logits
    return found
