"""What a network looks like."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ModelConfig(BaseModel):
    """The shape of a network. Zero means: chosen from the other values. Limits are far above what any machine holds."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    arch: Literal["gpt2", "qwen3"] = "qwen3"
    """gpt2: LayerNorm, GELU, learned positions. qwen3: RMSNorm, RoPE, QK-norm, SwiGLU; trains better."""
    d_model: int = Field(default=256, ge=8, le=1 << 17)
    """Width."""
    num_heads: int = Field(default=0, ge=0, le=1 << 17)
    """Attention heads; 0: one for every 64 of the width."""
    num_layers: int = Field(default=4, ge=1, le=1000)
    """Blocks."""
    d_ff: int = Field(default=0, ge=0, le=1 << 20)
    """Width of the feed-forward part; 0: 4 x the width (gpt2), 8/3 x to the nearest 64 (qwen3)."""
    vocab_size: int = Field(default=0, ge=0, le=1 << 24)
    """Tokens; 0: as many as the tokenizer has."""
    context: int = Field(default=0, ge=0, le=1 << 24)
    """Longest sequence that the network can take; 0: training.max_length."""
    tie_embeddings: bool = True
    """Whether the head shares the weights of the token embedding."""
    bias: bool = True
    """gpt2 only: whether linear layers and norms have biases (without, they are saved as zeros)."""
    rope_theta: float = Field(default=10_000.0, gt=0)
    """qwen3 only: base of the rotary positions."""

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.num_heads and self.d_model % self.num_heads:
            near = min((n for n in range(1, self.d_model + 1) if self.d_model % n == 0), key=self._distance)
            raise ValueError(
                f"num_heads {self.num_heads} does not divide d_model {self.d_model}; the nearest that does is"
                f" model.num_heads={near}"
            )
        if self.arch == "qwen3" and self.head_dim % 2:
            raise ValueError(f"rotary positions need an even width per head; d_model / num_heads is {self.head_dim}")
        return self

    def _distance(self, heads: int) -> int:
        return abs(heads - self.num_heads)

    @property
    def heads(self) -> int:
        if self.num_heads:
            return self.num_heads
        wanted = max(1, self.d_model // 64)
        even = (n for n in range(wanted, 0, -1) if self.d_model % n == 0 and self.d_model // n % 2 == 0)
        return next(even, 1)

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads

    @property
    def feed_forward(self) -> int:
        if self.d_ff:
            return self.d_ff
        return 4 * self.d_model if self.arch == "gpt2" else max(64, round(self.d_model / 24) * 64)
