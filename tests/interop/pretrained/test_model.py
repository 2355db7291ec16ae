"""Models that transformers saved, read by headrace: the same logits, or refused by the name of what is unsupported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace.errors import CheckpointError
from headrace.interop.pretrained.files import FolderFiles
from headrace.interop.pretrained.model import Pretrained
from headrace.models.network import Network, build
from tests.interop.pretrained.tiny_models import KINDS, change_config, logits_of, make_model, save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of the neighbours
TOKENS = torch.randint(300, (2, 40), generator=torch.Generator().manual_seed(2))


def load(folder: Path) -> Network:
    model = Pretrained(FolderFiles(folder))
    model.check_size()
    network = build(model.config, seed=9)
    model.load_into(network)
    return network


def largest_difference(network: Network, model: Any) -> float:
    with torch.no_grad():
        return float((network.logits(network(TOKENS)) - logits_of(model, TOKENS)).abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    model = make_model(kind)
    network = load(save_model(tmp_path, model))
    assert logits_of(model, TOKENS).abs().max() > 1, "or equal logits would show nothing"
    assert largest_difference(network, model) < 1e-4


@pytest.mark.parametrize("kind", ["gpt2", "qwen3 grouped", "llama"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_several_files(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    model = make_model(kind).to(dtype)
    save_model(tmp_path, model, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert largest_difference(load(tmp_path), theirs) < 1e-4


def test_a_model_saved_without_its_head_and_with_old_buffers(tmp_path: Path) -> None:
    """The names of OpenAI's own gpt2 on the hub: no prefix, and the causal mask among the weights."""
    model = make_model("gpt2")
    save_model(tmp_path, model)
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file({**bare, "h.0.attn.bias": torch.ones(1, 1, 64, 64)}, tmp_path / "model.safetensors")
    assert largest_difference(load(tmp_path), model) < 1e-4


def test_a_head_that_is_saved_with_a_tied_model(tmp_path: Path) -> None:
    model = make_model("qwen3")
    save_model(tmp_path, model)
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.clone()}, tmp_path / "model.safetensors")
    assert largest_difference(load(tmp_path), model) < 1e-4
    save_file({**tensors, "lm_head.weight": embedding + 1}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"says that head and embedding are one .* holds another head"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"model_type": "mixtral"}, "it has the model_type 'mixtral': a mixture of experts. headrace"),
        ("llama", {"model_type": "qwen2"}, "biases of queries, keys and values"),
        ("llama", {"model_type": "nobody"}, "the model_type 'nobody'. headrace computes gpt2, llama, mistral, qwen3"),
        ("llama", {"model_type": [1]}, "there is no model_type"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "scaled rotary positions .* llama3"),
        ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "scaled rotary positions .* yarn"),
        ("llama", {"partial_rotary_factor": 0.5}, "a part of each head"),
        ("llama", {"attention_bias": True}, r"biases in attention \(attention_bias\)"),
        ("llama", {"mlp_bias": True}, "biases in the feed-forward part"),
        ("llama", {"hidden_act": "gelu"}, "the activation 'gelu' .* headrace computes silu"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantised weights"),
        ("mistral", {"sliding_window": 32}, "sliding window attention"),
        ("qwen3", {"use_sliding_window": True}, "sliding window attention"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding or other attention"),
        ("qwen3", {"auto_map": {"AutoModel": "modeling_mine.Mine"}}, "code of its own .*modeling_mine.Mine"),
        ("qwen3", {"auto_map": "mine"}, "code of its own"),
        ("llama", {"rope_scaling": "linear"}, "not the configuration of a model"),
        ("llama", {"rope_theta": 10**400}, "not the configuration of a model"),
        ("qwen3", {"head_dim": 7}, "even width per head"),
        ("qwen3", {"num_key_value_heads": 3}, "num_kv_heads 3 does not divide num_heads 4"),
        ("qwen3", {"hidden_size": 1 << 40}, "no model has this shape .*d_model"),
        ("qwen3", {"hidden_size": None}, "there is no hidden_size"),
        ("qwen3", {"hidden_size": "wide"}, "hidden_size is 'wide' instead of a whole number above 0"),
        ("gpt2", {"activation_function": "relu"}, "the activation 'relu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scaled by the layer's number"),
        ("gpt2", {"scale_attn_weights": False}, "attention that is not scaled"),
        # Shapes that are possible, and not those of the weights.
        ("qwen3", {"num_hidden_layers": 3}, r"files hold [\d,]+ numbers, and a model of the shape in config.json has"),
        ("qwen3", {"num_hidden_layers": 1}, "has a tensor model.layers.1"),
        ("qwen3", {"vocab_size": 299}, r"weight is \(300, 32\), and by config.json it would be \(299, 32\)"),
        ("qwen3", {"vocab_size": 16_000_000}, "belongs to another model, or files are missing"),
        ("qwen3", {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}, "files hold"),
        ("gpt2", {"n_positions": 32}, "wpe.weight is"),
        ("llama", {"tie_word_embeddings": True}, "holds another head"),
        ("llama grouped", {"tie_word_embeddings": False}, "files hold"),
    ],
)  # fmt: skip
def test_what_headrace_does_not_compute_is_refused_by_name(
    tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    save_model(tmp_path, make_model(kind))
    change_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_files_that_are_missing_or_damaged(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "whole", make_model("llama"), max_shard_size="20KB")

    def refused(message: str, change: Any) -> None:
        copy = tmp_path / "changed"
        shutil.copytree(folder, copy)
        change(copy)
        with pytest.raises(CheckpointError, match=message):
            load(copy)
        shutil.rmtree(copy)

    index = "model.safetensors.index.json"
    first = sorted(path.name for path in folder.glob("model-*.safetensors"))[0]

    def point_elsewhere(copy: Path) -> None:
        values = json.loads((copy / index).read_text())
        values["weight_map"] = dict.fromkeys(values["weight_map"], "../secret.safetensors")
        (copy / index).write_text(json.dumps(values))

    def pickles_only(copy: Path) -> None:
        for path in copy.glob("model*"):
            path.unlink()
        (copy / "pytorch_model.bin").write_bytes(b"\x80\x02")

    def poison(copy: Path) -> None:
        tensors = load_file(copy / first)
        save_file({name: tensor * torch.nan for name, tensor in tensors.items()}, copy / first)

    def as_integers(copy: Path) -> None:
        tensors = load_file(copy / first)
        save_file({name: tensor.to(torch.int8) for name, tensor in tensors.items()}, copy / first)

    refused(f"{first}: missing, and {index} names it", lambda copy: (copy / first).unlink())
    refused("is not the name of a safetensors file beside it", point_elsewhere)
    refused("not an index of safetensors", lambda copy: (copy / index).write_text("[1]"))
    refused("cannot be read as safetensors", lambda copy: (copy / first).write_bytes(b"\0" * 100))
    refused("no config.json here", lambda copy: (copy / "config.json").unlink())
    refused("cannot be read as JSON", lambda copy: (copy / "config.json").write_text("{"))
    refused("it is not an object", lambda copy: (copy / "config.json").write_text("[]"))
    refused("holds pickled weights only.* convert them once: python -c", pickles_only)
    refused("not finite", poison)
    refused("is of type I8; headrace reads F32, F16, BF16", as_integers)
