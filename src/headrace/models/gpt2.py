"""GPT-2's shape: LayerNorm, GELU, learned positions. Saved, it is a `GPT2LMHeadModel`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from headrace.models.config import ModelConfig
from headrace.models.kernels import Kernels
from headrace.models.linear import Linear
from headrace.models.network import KeyValueCache, Network, attend


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, bias = config.d_model, config.bias
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(width, bias=bias)
        self.query_key_value = Linear(width, 3 * width, bias=bias)
        self.attention_out = Linear(width, width, bias=bias)
        self.feed_forward_norm = nn.LayerNorm(width, bias=bias)
        self.up = Linear(width, config.feed_forward, bias=bias)
        self.down = Linear(config.feed_forward, width, bias=bias)

    def forward(
        self,
        x_BTD: Tensor,
        _: Any,
        mask: Tensor | None,
        cache: KeyValueCache | None,
        layer: int,
        kernels: Kernels,
    ) -> Tensor:
        B, T, D = x_BTD.shape
        qkv = self.query_key_value(self.attention_norm(x_BTD), kernels).view(B, T, 3, self.heads, D // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if cache is not None:
            key, value = cache.extend(layer, key, value)
        x_BTD = x_BTD + self.attention_out(attend(query, key, value, mask), kernels)
        hidden = gelu(self.up(self.feed_forward_norm(x_BTD), kernels), approximate="tanh")
        out_BTD: Tensor = x_BTD + self.down(hidden, kernels)
        return out_BTD


class GPT2(Network):
    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.context, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.d_model, bias=config.bias)
        self.head = None if config.tie_embeddings else nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        residual_std = 0.02 / math.sqrt(2 * config.num_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_residual = name.endswith(("attention_out.weight", "down.weight"))
                nn.init.normal_(parameter, std=residual_std if is_residual else 0.02, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def begin(self, tokens_BT: Tensor, positions: Tensor) -> tuple[Tensor, Any]:
        return self.embedding(tokens_BT) + self.positions(positions), None

    def finish(self, x_BTD: Tensor) -> Tensor:
        return self.norm(x_BTD)  # type: ignore[no-any-return]

    def to_hugging_face(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        c = self.config
        config = {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": c.vocab_size,
            "n_positions": c.context, "n_ctx": c.context, "n_embd": c.d_model, "n_layer": c.num_layers,
            "n_head": c.heads, "n_inner": c.feed_forward, "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
            "tie_word_embeddings": c.tie_embeddings,
        }  # fmt: skip
        tensors = {}
        for name, tensor in self._named().items():
            if tensor is not None:
                tensors[name] = tensor
            else:  # transformers knows no GPT-2 without biases
                tensors[name] = torch.zeros(_bias_length(c, name))
        return config, {name: tensor.detach().contiguous() for name, tensor in tensors.items()}

    def load_hugging_face(self, tensors: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, own in self._named().items():
                if own is not None:
                    own.copy_(tensors[name])

    def _named(self) -> dict[str, Tensor | None]:
        """Own tensors under GPT-2's names; its linear layers keep their weights transposed."""
        named: dict[str, Tensor | None] = {
            "transformer.wte.weight": self.embedding.weight,
            "transformer.wpe.weight": self.positions.weight,
            "transformer.ln_f.weight": self.norm.weight,
            "transformer.ln_f.bias": self.norm.bias,
        }
        if self.head is not None:
            named["lm_head.weight"] = self.head
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            for theirs, layer in (
                ("ln_1", block.attention_norm), ("attn.c_attn", block.query_key_value),
                ("attn.c_proj", block.attention_out), ("ln_2", block.feed_forward_norm),
                ("mlp.c_fc", block.up), ("mlp.c_proj", block.down),
            ):  # fmt: skip
                prefix = f"transformer.h.{number}.{theirs}"
                weight: Tensor = layer.weight
                named[f"{prefix}.weight"] = weight.T if weight.dim() == 2 else weight
                named[f"{prefix}.bias"] = layer.bias
        return named


def _bias_length(config: ModelConfig, name: str) -> int:
    if name.endswith("c_attn.bias"):
        return 3 * config.d_model
    return config.feed_forward if name.endswith("c_fc.bias") else config.d_model
