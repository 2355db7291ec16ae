"""GPT-2's architecture: LayerNorm, GELU, learned positions. A saved one is a `GPT2LMHeadModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headrace.models.architecture import Architecture, Matrix, Part, register
from headrace.models.attention import KeyValueCache, attend
from headrace.models.config import ModelConfig
from headrace.models.hugging_face import HuggingFaceConfig, UnsupportedError
from headrace.models.kernels import Kernels
from headrace.models.linear import Linear
from headrace.models.network import Network
from headrace.models.pointwise import gelu

SAME_ACTIVATION = ("gelu_new", "gelu_pytorch_tanh")
"""Names by which transformers calls GELU by its tanh formula."""


class GPT2Architecture(Architecture):
    """The facts of GPT-2."""

    name = "gpt2"
    native_kind = "gpt2"
    hugging_face_types = ("gpt2",)
    default_epsilon = 1e-5

    def default_feed_forward(self, d_model: int) -> int:
        return 4 * d_model

    def block_matrices(self, config: ModelConfig) -> list[Matrix]:
        width, feed_forward = config.d_model, config.feed_forward
        return [
            Matrix("attention", "query_key_value.weight", width, width, stacked=3),
            Matrix("attention", "attention_out.weight", width, width),
            Matrix("feed-forward", "up.weight", feed_forward, width),
            Matrix("feed-forward", "down.weight", width, feed_forward),
        ]

    def other_parameters(self, config: ModelConfig) -> dict[Part, int]:
        width, layers = config.d_model, config.num_layers
        norms = (2 * layers + 1) * width
        parameters: dict[Part, int] = {"embedding": config.context * width, "norms": norms}
        if config.bias:
            parameters["norms"] += norms
            parameters["attention"] = layers * 4 * width
            parameters["feed-forward"] = layers * (config.feed_forward + width)
        return parameters

    def activation_bytes(self, config: ModelConfig, precision: str) -> int:
        width, feed_forward = config.d_model, config.feed_forward
        return {"float32": 32 * width + 8 * feed_forward, "bfloat16": 20 * width + 4 * feed_forward}[precision]

    def read_hugging_face(self, values: HuggingFaceConfig) -> dict[str, Any]:
        activation = values.get("activation_function")
        if activation not in (None, *SAME_ACTIVATION):
            raise UnsupportedError(
                f"the activation {activation!r:.80} (activation_function); headrace computes gelu_new"
            )
        if not values.flag("scale_attn_weights", True):
            raise UnsupportedError("attention that is not scaled (scale_attn_weights)")
        values.refuse_if_set("scale_attn_by_inverse_layer_idx", "attention that is scaled by the layer's number")
        values.refuse_if_set("add_cross_attention", "cross-attention")
        width = values.whole("n_embd")
        return {
            "d_model": width,
            "num_heads": values.whole("n_head"),
            "num_layers": values.whole("n_layer"),
            "d_ff": values.whole("n_inner", 4 * width),
            "vocab_size": values.whole("vocab_size"),
            "context": values.whole("n_positions"),
            "tie_embeddings": values.flag("tie_word_embeddings", True),
            "norm_epsilon": values.number("layer_norm_epsilon", 1e-5),
            "bias": True,
        }

    def build(self, config: ModelConfig, generator: torch.Generator) -> Network:
        return GPT2(config, generator)


class Block(nn.Module):
    """One layer: attention, then a feed-forward part, each after a norm and added to what came in."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, bias = config.d_model, config.bias
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(width, eps=config.epsilon, bias=bias)
        self.query_key_value = Linear(width, 3 * width, bias=bias)
        self.attention_out = Linear(width, width, bias=bias)
        self.feed_forward_norm = nn.LayerNorm(width, eps=config.epsilon, bias=bias)
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
        x_BTD = x_BTD + self.attention_out(attend(qkv, mask, cache, layer, kernels), kernels)
        hidden = gelu(self.up(self.feed_forward_norm(x_BTD), kernels), kernels)
        out_BTD: Tensor = x_BTD + self.down(hidden, kernels)
        return out_BTD


class GPT2(Network):
    """The network of GPT-2."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__(config)
        self.positions = nn.Embedding(config.context, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.d_model, eps=config.epsilon, bias=config.bias)
        self.draw_weights(generator, residual=("attention_out.weight", "down.weight"))

    def begin(self, tokens_BT: Tensor, positions: Tensor) -> tuple[Tensor, Any]:
        return self.embedding(tokens_BT) + self.positions(positions), None

    def hugging_face_config(self) -> dict[str, Any]:
        c = self.config
        return {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": c.vocab_size,
            "n_positions": c.context, "n_ctx": c.context, "n_embd": c.d_model, "n_layer": c.num_layers,
            "n_head": c.heads, "n_inner": c.feed_forward, "activation_function": "gelu_new",
            "layer_norm_epsilon": c.epsilon, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
            "tie_word_embeddings": c.tie_embeddings,
        }  # fmt: skip

    def hugging_face_tensors(self) -> dict[str, Tensor]:
        named = {"transformer.wte.weight": self.embedding.weight, "transformer.wpe.weight": self.positions.weight}
        if self.head is not None:
            named["lm_head.weight"] = self.head
        layers: dict[str, nn.Module] = {"transformer.ln_f": self.norm}
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            prefix = f"transformer.h.{number}"
            layers |= {
                f"{prefix}.ln_1": block.attention_norm, f"{prefix}.attn.c_attn": block.query_key_value,
                f"{prefix}.attn.c_proj": block.attention_out, f"{prefix}.ln_2": block.feed_forward_norm,
                f"{prefix}.mlp.c_fc": block.up, f"{prefix}.mlp.c_proj": block.down,
            }  # fmt: skip
        for name, layer in layers.items():
            weight, bias = layer.weight, layer.bias
            assert isinstance(weight, Tensor)
            # transformers keeps the weights of linear layers transposed, and knows no GPT-2 without biases.
            named[f"{name}.weight"] = weight.T if weight.dim() == 2 else weight
            named[f"{name}.bias"] = bias if isinstance(bias, Tensor) else torch.zeros(len(weight))
        return named


register(GPT2Architecture())
