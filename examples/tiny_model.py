"""A small transformer, which the PyTorch examples in this folder train."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LENGTH, WIDTH, HEADS, LAYERS = 64, 64, 4, 2


class TinyModel(nn.Module):
    """A decoder of about 230,000 parameters that returns its loss on `inputs` and `targets` of shape (rows, LENGTH)."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, vocab_size)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        length = inputs.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=inputs.device)
        hidden = self.tokens(inputs) + self.positions(torch.arange(length, device=inputs.device))
        for layer in self.layers:
            hidden = layer(hidden, src_mask=causal, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())
