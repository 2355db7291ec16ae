"""The `model` section of a configuration: the shape of a network."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from headrace.models.architecture import check_name, find_architecture

MAX_NEW_TOKENS = 65_536
MOST_WIDTH = 1 << 17
LEAST_HEAD_WIDTH = 96
"""Width of a head, where the number of heads is open: networks with narrower heads learn later to copy from what came
before (docs/recipe.md)."""


def heads_of(width: int, least_head_width: int) -> int:
    """Return the most heads of at least this width, each of an even one, that a network can be cut into.

    >>> [heads_of(width, 96) for width in (64, 96, 192, 256, 512, 768)]
    [1, 1, 2, 2, 4, 8]
    """
    wanted = max(1, width // least_head_width)
    even = (number for number in range(wanted, 0, -1) if width % number == 0 and width // number % 2 == 0)
    return next(even, 1)


class ModelConfig(BaseModel):
    """The shape of a network. Zero means: chosen from the other values. Limits are far above what any machine holds."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    arch: Annotated[str, AfterValidator(check_name)] = "qwen3"
    """gpt2: LayerNorm, GELU, learned positions. qwen3: RMSNorm, RoPE, QK-norm, SwiGLU; trains better. llama: qwen3
    without QK-norm, to continue from models of that kind."""
    d_model: int = Field(default=256, ge=8, le=MOST_WIDTH)
    """Width of the network. With a time limit and nothing said about the network, it is chosen."""
    num_heads: int = Field(default=0, ge=0, le=1 << 17)
    """Attention heads; 0: as many as can be at least 96 wide."""
    num_kv_heads: int = Field(default=0, ge=0, le=1 << 17)
    """qwen3 and llama: heads of keys and values, each shared by as many query heads; 0: as many as num_heads."""
    head_dim: int = Field(default=0, ge=0, le=1 << 17)
    """qwen3 and llama: width of one attention head; 0: d_model / num_heads."""
    num_layers: int = Field(default=4, ge=1, le=1000)
    """Number of blocks. With a time limit and nothing said about the network, it is chosen."""
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
    rope_theta: float = Field(default=1_000_000.0, gt=0)
    """qwen3 and llama: base of the rotary positions; a large one leaves more of each head to compare contents."""
    norm_epsilon: float = Field(default=0.0, ge=0, lt=1)
    """Number that norms add before they divide; 0: the usual one, 1e-6 for qwen3, 1e-5 for the others."""
    init: str = ""
    """A model to continue from: a run, a folder with config.json and safetensors, or a hub name (OWNER/NAME). The
    shape and the tokenizer are its own; empty: random weights."""
    new_tokens: list[str] = Field(default_factory=list, max_length=MAX_NEW_TOKENS)
    """With init: words or markers, such as <|user|>, that become one token each; they are added to its vocabulary."""

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.init and not self.model_fields_set >= ModelConfig.model_fields.keys():
            return self  # what is not given is the model's, and comes later
        architecture = find_architecture(self.arch)
        if self.num_heads and not self.head_dim and self.d_model % self.num_heads:
            near = min((n for n in range(1, self.d_model + 1) if self.d_model % n == 0), key=self._distance)
            raise ValueError(
                f"num_heads {self.num_heads} does not divide d_model {self.d_model}; the nearest that does is"
                f" model.num_heads={near}"
            )
        if (self.head_dim or self.num_kv_heads) and not architecture.has_grouped_heads:
            key = "head_dim" if self.head_dim else "num_kv_heads"
            raise ValueError(f"{self.arch} has no {key}: its heads share d_model evenly. Leave model.{key} out.")
        if self.heads % self.kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.heads}")
        if self.new_tokens and not self.init:
            raise ValueError("new_tokens are added to the vocabulary of a model: give model.init too")
        architecture.check(self)
        return self

    def _distance(self, heads: int) -> int:
        return abs(heads - self.num_heads)

    def shape(self) -> dict[str, Any]:
        """Return the keys that decide what is computed, without those that say where the first weights come from."""
        return self.model_dump(exclude={"init", "new_tokens"})

    @property
    def heads(self) -> int:
        """The number of attention heads: the given one, or as many of an even width as can be at least 96 wide."""
        return self.num_heads or heads_of(self.d_model, LEAST_HEAD_WIDTH)

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.num_kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """The width of one attention head."""
        return self.head_dim or self.d_model // self.heads

    @property
    def attention_width(self) -> int:
        """The width of all query heads together: that of the model, unless head_dim is given."""
        return self.heads * self.head_width

    @property
    def epsilon(self) -> float:
        """The number that norms add before they divide."""
        return self.norm_epsilon or find_architecture(self.arch).default_epsilon

    @property
    def feed_forward(self) -> int:
        """The feed-forward width: the given one, or the default of the architecture."""
        return self.d_ff or find_architecture(self.arch).default_feed_forward(self.d_model)
