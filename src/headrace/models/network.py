"""What all networks share: the interface, positions within documents, and building one from its configuration."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headrace.models.architecture import find_architecture
from headrace.models.attention import KeyValueCache, document_mask
from headrace.models.config import ModelConfig
from headrace.models.dropout import AT_BLOCKS, AT_HEAD, Dropout, drop
from headrace.models.kernels import PLAIN, Kernels

# Shapes: B rows, T tokens, D width, V vocabulary.


class Network(nn.Module, ABC):
    """A causal language model: tokens in, hidden states out; the head is applied by whoever needs logits or a loss."""

    blocks: nn.ModuleList
    norm: nn.Module
    """The norm after the last block."""
    head: nn.Parameter | None
    """The weights of the head; None where it shares those of the embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.head = None if config.tie_embeddings else nn.Parameter(torch.empty(config.vocab_size, config.d_model))

    @property
    def device(self) -> torch.device:
        """The device that the weights are on."""
        return self.embedding.weight.device

    @property
    def head_weight_VD(self) -> Tensor:
        """The weights of the head, whether tied to the embedding or not."""
        return self.embedding.weight if self.head is None else self.head

    @property
    def token_tables(self) -> list[Tensor]:
        """The parameters with a row for each token of the vocabulary."""
        return [self.embedding.weight] if self.head is None else [self.embedding.weight, self.head]

    def forward(
        self,
        tokens_BT: Tensor,
        documents_BT: Tensor | None = None,
        cache: KeyValueCache | None = None,
        kernels: Kernels = PLAIN,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """Return the hidden states after the last norm.

        With `documents_BT`, tokens attend only within their own document, and positions count from its start. With
        `dropout`, some numbers of what goes into the blocks and of the result are left out.
        """
        start = 0 if cache is None else cache.length
        positions = torch.arange(start, start + tokens_BT.shape[1], device=tokens_BT.device)
        mask = None
        if documents_BT is not None:
            mask = document_mask(documents_BT)
            positions = document_positions(documents_BT)
        x_BTD, extras = self.begin(tokens_BT, positions)
        x_BTD = drop(dropout, x_BTD, AT_BLOCKS)
        for number, block in enumerate(self.blocks):
            if kernels.gradient_checkpointing and torch.is_grad_enabled():
                x_BTD = checkpoint(block, x_BTD, extras, mask, None, number, kernels, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, extras, mask, cache, number, kernels)
        return drop(dropout, self.norm(x_BTD), AT_HEAD)

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head."""
        return hidden @ self.head_weight_VD.T

    def draw_weights(self, generator: torch.Generator, residual: tuple[str, ...]) -> None:
        """Draw matrices from a normal distribution and set biases to zero.

        Matrices whose names end as in `residual` add to the residual stream, which 2 x layers of them do: they get
        a smaller spread, so that the stream does not grow with depth.
        """
        residual_std = 0.02 / math.sqrt(2 * self.config.num_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=residual_std if name.endswith(residual) else 0.02, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def to_hugging_face(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return config.json and the tensors as transformers names them."""
        tensors = self.hugging_face_tensors()
        return self.hugging_face_config(), {name: tensor.detach().contiguous() for name, tensor in tensors.items()}

    def load_hugging_face(self, tensors: dict[str, Tensor]) -> None:
        """Copy the weights from tensors under transformers' names; the caller has checked that all are there."""
        with torch.no_grad():
            for name, own in self.hugging_face_tensors().items():
                own.copy_(tensors[name])

    @abstractmethod
    def begin(self, tokens_BT: Tensor, positions: Tensor) -> tuple[Tensor, Any]:
        """Return the embedded tokens, and what every block needs besides (such as rotary tables)."""

    @abstractmethod
    def hugging_face_config(self) -> dict[str, Any]:
        """Return the content of config.json, by which transformers builds the same model."""

    @abstractmethod
    def hugging_face_tensors(self) -> dict[str, Tensor]:
        """Return the parameters, or views of them, under the names that transformers gives them."""


def document_positions(documents_BT: Tensor) -> Tensor:
    """Return positions (B, T) that start again with every document."""
    places = torch.arange(documents_BT.shape[1], device=documents_BT.device).expand_as(documents_BT)
    is_first = torch.ones_like(documents_BT, dtype=torch.bool)
    is_first[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return places - torch.where(is_first, places, 0).cummax(dim=1).values


def build(config: ModelConfig, seed: int = 0) -> Network:
    """Build a network with fresh weights, the same for the same seed."""
    assert config.vocab_size and config.context, "vocab_size and context are filled in before a network is built"
    return find_architecture(config.arch).build(config, torch.Generator().manual_seed(seed))
