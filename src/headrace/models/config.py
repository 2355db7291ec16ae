"""The `model` section of a configuration: the shape of a network."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from headrace.models.architecture import check_name, find_architecture


class ModelConfig(BaseModel):
    """The shape of a network. Zero means: chosen from the other values. Limits are far above what any machine holds."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    arch: Annotated[str, AfterValidator(check_name)] = "qwen3"
    """gpt2: LayerNorm, GELU, learned positions. qwen3: RMSNorm, RoPE, QK-norm, SwiGLU; trains better."""
    d_model: int = Field(default=256, ge=8, le=1 << 17)
    """Width of the network."""
    num_heads: int = Field(default=0, ge=0, le=1 << 17)
    """Attention heads; 0: one for every 64 of the width."""
    num_layers: int = Field(default=4, ge=1, le=1000)
    """Number of blocks."""
    d_ff: int = Field(default=0, ge=0, le=1 << 20)
    """Width of the feed-forward part; 0: the usual one, 4 x d_model for gpt2, 8/3 x (to the nearest 64) for qwen3."""
    vocab_size: int = Field(default=0, ge=0, le=1 << 24)
    """Number of tokens in the vocabulary; 0: as many as the tokenizer has."""
    context: int = Field(default=0, ge=0, le=1 << 24)
    """Longest sequence that the network can take; 0: training.max_length."""
    tie_embeddings: bool = True
    """Whether the head shares the weights of the token embedding."""
    bias: bool = True
    """gpt2 only: whether linear layers and norms have biases (a model without is saved with biases of zero)."""
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
        find_architecture(self.arch).check(self)
        return self

    def _distance(self, heads: int) -> int:
        return abs(heads - self.num_heads)

    @property
    def heads(self) -> int:
        """The number of attention heads: the given one, or one for every 64 of the width, each of an even width."""
        if self.num_heads:
            return self.num_heads
        wanted = max(1, self.d_model // 64)
        even = (n for n in range(wanted, 0, -1) if self.d_model % n == 0 and self.d_model // n % 2 == 0)
        return next(even, 1)

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.d_model // self.heads

    @property
    def feed_forward(self) -> int:
        """The feed-forward width: the given one, or the default of the architecture."""
        return self.d_ff or find_architecture(self.arch).default_feed_forward(self.d_model)
