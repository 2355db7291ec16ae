"""Networks against their oracles: transformers for logits, and themselves for the cache and for documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.data.tokens.tokenizers import load_tokenizer
from headrace.models.attention import KeyValueCache
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.kernels import Kernels
from headrace.models.network import build, document_positions
from headrace.training.checkpoint import Checkpoints
from tests.conftest import make_text

SHAPES: list[dict[str, Any]] = [
    {"arch": "gpt2"},
    {"arch": "gpt2", "bias": False},
    {"arch": "gpt2", "tie_embeddings": False},
    {"arch": "qwen3"},
    {"arch": "qwen3", "tie_embeddings": False, "d_ff": 96, "num_heads": 2},
    {"arch": "qwen3", "num_kv_heads": 2, "head_dim": 24, "norm_epsilon": 1e-5, "rope_theta": 1e6},
    {"arch": "llama"},
    {"arch": "llama", "tie_embeddings": False, "num_kv_heads": 1, "head_dim": 8, "norm_epsilon": 1e-6},
    {"arch": "gpt2", "norm_epsilon": 1e-3},
]
ARCHITECTURES: list[dict[str, Any]] = [
    {"arch": "gpt2"}, {"arch": "qwen3"}, {"arch": "qwen3", "num_kv_heads": 2, "head_dim": 24}, {"arch": "llama"},
    {"arch": "llama", "num_kv_heads": 2},
]  # fmt: skip


def config(**changes: Any) -> ModelConfig:
    return ModelConfig(**{"d_model": 64, "num_heads": 4, "num_layers": 2, "vocab_size": 400, "context": 32, **changes})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.filterwarnings("ignore")  # transformers' own deprecations
def test_transformers_gives_the_same_logits_and_ids(tmp_path: Path, shape: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    text = make_text(20_000)
    tokenizer = load_tokenizer("bpe:400", lambda: iter([text.encode()]))
    network = build(config(**shape), seed=3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    folder = Checkpoints(tmp_path).save(1, network, {}, tokenizer, {}, True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.randint(400, (3, 32), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        difference = (theirs(tokens).logits - network.logits(network(tokens))).abs().max()
    assert difference < 1e-4
    assert theirs.num_parameters() - count(config(**shape), 32).num_parameters == missing_biases(shape)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text[:500])["input_ids"]
    assert ids == tokenizer.encode(text[:500]).tolist()


def missing_biases(shape: dict[str, Any]) -> int:
    return 0 if shape.get("bias", True) else 2 * (4 * 64 + 256 + 64) + 5 * 64


@pytest.mark.parametrize("shape", ARCHITECTURES, ids=str)
def test_packed_documents_do_not_see_each_other(shape: dict[str, Any]) -> None:
    network = build(config(**shape), seed=1)
    tokens = torch.randint(400, (1, 20))
    documents = torch.tensor([[1] * 7 + [2] * 10 + [0] * 3])
    with torch.no_grad():
        packed = network(tokens, documents)
        torch.testing.assert_close(packed[:, :7], network(tokens[:, :7]), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(packed[:, 7:17], network(tokens[:, 7:17]), atol=1e-5, rtol=1e-4)
    assert document_positions(documents).tolist() == [[*range(7), *range(10), *range(3)]]


@pytest.mark.parametrize("shape", ARCHITECTURES, ids=str)
def test_decoding_with_a_cache_is_the_same(shape: dict[str, Any]) -> None:
    network = build(config(**shape), seed=1)
    tokens = torch.randint(400, (2, 20))
    with torch.no_grad():
        whole = network(tokens)
        cache = KeyValueCache(2)
        parts = [network(tokens[:, :7], cache=cache), network(tokens[:, 7:12], cache=cache)]
        parts += [network(tokens[:, i : i + 1], cache=cache) for i in range(12, 20)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", ARCHITECTURES, ids=str)
def test_what_is_left_to_the_compiler_is_the_same(shape: dict[str, Any]) -> None:
    """Code for torch.compile is in PyTorch's own operations; here it runs as it is."""
    tokens, results = torch.arange(64).view(2, 32), []
    for kernels in (Kernels(), Kernels(compile=True)):
        network = build(config(**shape), seed=1)
        hidden = network(tokens, kernels=kernels)
        hidden.pow(3).mean().backward()
        gradients = [parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None]
        results.append(torch.cat([hidden.detach().flatten(), *gradients]))
    assert (results[1] - results[0]).norm() < 1e-5 * results[0].norm()


def test_gradient_checkpointing_changes_nothing() -> None:
    grads = []
    for is_on in (False, True):
        network = build(config(), seed=1)
        network(torch.arange(32)[None], kernels=Kernels(gradient_checkpointing=is_on)).square().sum().backward()
        grads.append([parameter.grad for parameter in network.parameters() if parameter.grad is not None])
    torch.testing.assert_close(*grads)
