"""The parts that all architectures share: the interface, the KV cache, attention within documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from headrace.models.config import ModelConfig
from headrace.models.kernels import PLAIN, Kernels

# Shapes: B rows, T tokens, D width, H heads, K width per head, V vocabulary.


class KeyValueCache:
    """Keys and values of the tokens so far, for decoding."""

    def __init__(self, num_layers: int) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    @property
    def length(self) -> int:
        """Number of tokens so far."""
        return 0 if self.layers[0] is None else self.layers[0][0].shape[2]

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens to a layer; return those of all its tokens."""
        held = self.layers[layer]
        if held is not None:
            key_BHTK = torch.cat([held[0], key_BHTK], dim=2)
            value_BHTK = torch.cat([held[1], value_BHTK], dim=2)
        self.layers[layer] = (key_BHTK, value_BHTK)
        return key_BHTK, value_BHTK


class Network(nn.Module, ABC):
    """A causal language model: tokens in, hidden states out; the head is applied by whoever needs logits or a loss."""

    blocks: nn.ModuleList
    embedding: nn.Embedding
    head: nn.Parameter | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def device(self) -> torch.device:
        """The device that the weights are on."""
        return self.embedding.weight.device

    @property
    def head_weight_VD(self) -> Tensor:
        """The weight of the head: its own, or the embedding's."""
        return self.embedding.weight if self.head is None else self.head

    def forward(
        self,
        tokens_BT: Tensor,
        documents_BT: Tensor | None = None,
        cache: KeyValueCache | None = None,
        kernels: Kernels = PLAIN,
    ) -> Tensor:
        """Return the hidden states after the last norm.

        With `documents`, each token attends only to its own document, and positions count from the document's start.
        """
        start = 0 if cache is None else cache.length
        positions = torch.arange(start, start + tokens_BT.shape[1], device=tokens_BT.device)
        mask = None
        if documents_BT is not None:
            mask = document_mask(documents_BT)
            positions = document_positions(documents_BT)
        x_BTD, extras = self.begin(tokens_BT, positions)
        for number, block in enumerate(self.blocks):
            if kernels.gradient_checkpointing and torch.is_grad_enabled():
                x_BTD = checkpoint(block, x_BTD, extras, mask, None, number, kernels, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, extras, mask, cache, number, kernels)
        return self.finish(x_BTD)

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head."""
        return hidden @ self.head_weight_VD.T

    @abstractmethod
    def begin(self, tokens_BT: Tensor, positions: Tensor) -> tuple[Tensor, Any]:
        """Return the embedded tokens, and what every block needs besides (rotary tables, or None)."""

    @abstractmethod
    def finish(self, x_BTD: Tensor) -> Tensor:
        """Apply the last norm."""

    @abstractmethod
    def to_hugging_face(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the content of config.json, and the tensors under the names that transformers knows."""

    @abstractmethod
    def load_hugging_face(self, tensors: dict[str, Tensor]) -> None:
        """Load tensors under the names of transformers; the caller has checked that none is missing."""


def document_mask(documents_BT: Tensor) -> Tensor:
    """Return the attention mask (B, 1, T, T): tokens see earlier ones of their document; padding sees padding."""
    same = documents_BT[:, None, :, None] == documents_BT[:, None, None, :]
    length = documents_BT.shape[1]
    return same & torch.ones(length, length, dtype=torch.bool, device=documents_BT.device).tril()


def document_positions(documents_BT: Tensor) -> Tensor:
    """Return positions (B, T) that start again at 0 with every document."""
    places = torch.arange(documents_BT.shape[1], device=documents_BT.device).expand_as(documents_BT)
    is_first = torch.ones_like(documents_BT, dtype=torch.bool)
    is_first[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return places - torch.where(is_first, places, 0).cummax(dim=1).values


def attend(query_BHTK: Tensor, key_BHTK: Tensor, value_BHTK: Tensor, mask: Tensor | None) -> Tensor:
    """Compute causal attention by PyTorch's fused kernel; a mask replaces plain causality."""
    is_causal = mask is None and query_BHTK.shape[2] > 1
    if is_causal and key_BHTK.shape[2] > query_BHTK.shape[2]:  # several new tokens after a cache
        new, old = query_BHTK.shape[2], key_BHTK.shape[2]
        mask = torch.ones(new, old, dtype=torch.bool, device=query_BHTK.device).tril(old - new)
        is_causal = False
    out_BHTK = scaled_dot_product_attention(query_BHTK, key_BHTK, value_BHTK, attn_mask=mask, is_causal=is_causal)
    return out_BHTK.transpose(1, 2).flatten(2)


def build(config: ModelConfig, seed: int = 0) -> Network:
    """Build a network with fresh weights, the same for the same seed."""
    from headrace.models.gpt2 import GPT2
    from headrace.models.qwen3 import Qwen3

    assert config.vocab_size and config.context, "the recipe fills in vocab_size and context"
    generator = torch.Generator().manual_seed(seed)
    kind = {"gpt2": GPT2, "qwen3": Qwen3}[config.arch]
    return kind(config, generator)
