"""GGUF files, which llama.cpp, Ollama, LM Studio and others run.

    facts = GgufFacts(name="mine", training_tokens=1_000_000)
    write_gguf(Path("mine.gguf"), network, tokenizer, "f16", facts)

Weights are written one tensor at a time, so that a file of any size takes little memory beside the network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from headrace.data.tokens.tokenizers import UNKNOWN, Tokenizer
from headrace.errors import UsageError
from headrace.files import sync_directory, temporary_beside, writing_failed
from headrace.interop.extras import require
from headrace.interop.gguf_vocabulary import Vocabulary, make_vocabulary
from headrace.models.config import ModelConfig
from headrace.models.network import Network

Values = npt.NDArray[np.float32]
GgufType = Literal["f32", "f16", "bf16", "q8_0"]
GGUF_TYPES: tuple[str, ...] = get_args(GgufType)


@dataclass(frozen=True)
class GgufFacts:
    """What a GGUF file says of its model beside the weights."""

    name: str
    training_tokens: int
    training_steps: int
    headrace_version: str


def write_gguf(path: Path, network: Network, tokenizer: Tokenizer, kind: str, facts: GgufFacts) -> str:
    """Write a network and its tokenizer as a GGUF file that is whole or not there.

    Return a sentence on text that llama.cpp reads in another way than headrace; empty if there is none.
    """
    gguf = require("gguf", "gguf")
    arch = network.config.arch
    if arch not in _DESCRIBE:
        raise UsageError(f"model.arch {arch}: GGUF export knows {', '.join(sorted(_DESCRIBE))} only.")
    vocabulary = make_vocabulary(tokenizer, network.config.vocab_size)
    tensors = _named_tensors(gguf, network)
    with _whole_or_not_there(path) as temporary:
        writer = gguf.GGUFWriter(temporary, arch)
        try:
            _DESCRIBE[arch](writer, network.hugging_face_config())
            _add_facts(writer, facts, getattr(gguf.LlamaFileType, _FILE_TYPES[kind]))
            _add_vocabulary(writer, vocabulary, tokenizer)
            _write_tensors(gguf, writer, tensors, kind)
        finally:
            with suppress(OSError):  # a full disk has been reported by the write before
                writer.close()
    return vocabulary.notice


@contextmanager
def _whole_or_not_there(path: Path) -> Iterator[Path]:
    """Give a temporary file to write; move it to its place when it is whole, and remove it if it is not."""
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as problem:
        raise writing_failed(path, problem) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


# What each architecture is called and how it is shaped, from its config.json


def _describe_gpt2(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(config["n_inner"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])


def _describe_llama(writer: Any, config: dict[str, Any]) -> None:
    _describe_qwen3(writer, config)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])


def _describe_qwen3(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])  # llama.cpp's guess is the width over the heads, of another model
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])


_DESCRIBE: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "gpt2": _describe_gpt2, "llama": _describe_llama, "qwen3": _describe_qwen3
}  # fmt: skip
_FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}


def _add_facts(writer: Any, facts: GgufFacts, file_type: int) -> None:
    writer.add_type("model")
    writer.add_name(facts.name)
    trained = f"Trained with headrace {facts.headrace_version} on {facts.training_tokens:,} tokens."
    converted = f"Converted with headrace {facts.headrace_version}."
    writer.add_description(trained if facts.training_steps else converted)
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    writer.add_string("headrace.version", facts.headrace_version)
    writer.add_uint64("headrace.training_tokens", facts.training_tokens)
    writer.add_uint64("headrace.training_steps", facts.training_steps)


def _add_vocabulary(writer: Any, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(tokenizer.end_of_text_id)
    writer.add_eos_token_id(tokenizer.end_of_text_id)
    writer.add_pad_token_id(tokenizer.special_tokens[tokenizer.padding])
    if UNKNOWN in tokenizer.special_tokens:
        writer.add_unk_token_id(tokenizer.special_tokens[UNKNOWN])
    writer.add_add_bos_token(False)


# Weights


def _named_tensors(gguf: Any, network: Network) -> dict[str, Values]:
    """Return views of the weights under llama.cpp's names; linear layers have their outputs first."""
    config = network.config
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, config.arch.upper()), config.num_layers)
    tensors: dict[str, Values] = {}
    for name, tensor in network.hugging_face_tensors().items():
        values = tensor.detach().cpu().numpy()
        turned = _TURN[config.arch](name, values, config) if config.arch in _TURN else values
        tensors[names.get_name(name, (".weight", ".bias"))] = turned
    return tensors


def _turn_gpt2(name: str, values: Values, _: ModelConfig) -> Values:
    """Transpose the linear layers, which transformers' GPT-2 keeps with their inputs first."""
    return values.T if name.startswith("transformer.h.") and values.ndim == 2 else values


def _turn_llama(name: str, values: Values, config: ModelConfig) -> Values:
    """Interleave the rows of queries and keys: llama.cpp rotates neighbours, transformers the halves of a head."""
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return values
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


_TURN: dict[str, Callable[[str, Values, ModelConfig], Values]] = {"gpt2": _turn_gpt2, "llama": _turn_llama}
"""How weights lie in a GGUF file, where not as in transformers."""


def _write_tensors(gguf: Any, writer: Any, tensors: dict[str, Values], kind: str) -> None:
    types = {name: _type_of(gguf, name, values, kind) for name, values in tensors.items()}
    for name, values in tensors.items():
        block, block_bytes = gguf.GGML_QUANT_SIZES[types[name]]
        writer.add_tensor_info(name, values.shape, values.dtype, values.size // block * block_bytes, types[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    (file,) = writer.fout
    writer.write_padding(file, file.tell())
    for name, values in tensors.items():
        # Not NumPy's tofile, whose error on a full disk does not say that the disk is full.
        written = file.write(gguf.quantize(np.ascontiguousarray(values), types[name]).data)
        writer.write_padding(file, written)
    writer.flush()


def _type_of(gguf: Any, name: str, values: Values, kind: str) -> Any:
    """Return the type to store a tensor in: vectors and positions stay exact, and rows that Q8_0 cannot cut are F16."""
    if values.ndim == 1 or name.startswith("position_embd"):
        return gguf.GGMLQuantizationType.F32
    wanted = getattr(gguf.GGMLQuantizationType, kind.upper())
    return wanted if values.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0 else gguf.GGMLQuantizationType.F16
