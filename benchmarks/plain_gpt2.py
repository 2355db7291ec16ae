"""GPT-2 as people write it: PyTorch's own layers, activation and fused attention, and nothing of headrace."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from headrace.models.config import ModelConfig


class Block(nn.Module):
    def __init__(self, width: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, feed_forward), nn.Linear(feed_forward, width)
        self.activation = nn.GELU(approximate="tanh")

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        parts = self.query_key_value(self.attention_norm(x)).split(D, dim=2)
        query, key, value = (part.view(B, T, self.heads, D // self.heads).transpose(1, 2) for part in parts)
        y = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(B, T, D))
        out: Tensor = x + self.down(self.activation(self.up(self.feed_forward_norm(x))))
        return out


class PlainGPT2(nn.Module):
    """Tokens in, logits out; the head is tied to the embedding, as in headrace's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.tie_embeddings
        width = config.d_model
        self.embedding, self.positions = nn.Embedding(config.vocab_size, width), nn.Embedding(config.context, width)
        self.blocks = nn.Sequential(
            *(Block(width, config.heads, config.feed_forward) for _ in range(config.num_layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits
