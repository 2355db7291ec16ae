"""The memory that passes of a network take, estimated from its shape without building it."""

from __future__ import annotations

from headrace.models.architecture import find_architecture
from headrace.models.config import ModelConfig
from headrace.models.counts import FLOAT_BYTES, Counts
from headrace.models.kernels import probabilities_per_token

BFLOAT16_BYTES = 2


def weight_copy_bytes(counts: Counts, precision: str) -> int:
    """Return the size of autocast's copies of the matrices in the blocks, kept until the backward pass has used them.

    With gradient checkpointing they are kept as well, to the end of the forward pass: that is when most is held.
    """
    return BFLOAT16_BYTES * counts.block_weights if precision == "bfloat16" else 0


def estimated_activation_bytes_per_token(
    config: ModelConfig, precision: str = "float32", attention: str = "fused", sequence_length: int = 0
) -> float:
    """Estimate what the blocks keep per token for the backward pass, where there is no network to count it on.

    Attention by batched products keeps probabilities too, as many as the sequence is long.
    """
    kept: float = find_architecture(config.arch).activation_bytes(config, precision)
    if attention == "products":
        kept += number_bytes(precision) * probabilities_per_token(sequence_length, config.heads)
    return config.num_layers * kept


def number_bytes(precision: str) -> int:
    """Return the bytes of a number in matrix products of a precision."""
    return BFLOAT16_BYTES if precision == "bfloat16" else FLOAT_BYTES


def checkpointed_bytes_per_token(config: ModelConfig, activation_bytes_per_token: float) -> float:
    """Return what gradient checkpointing keeps per token: the input of each block, and all activations of one."""
    return FLOAT_BYTES * config.num_layers * config.d_model + activation_bytes_per_token / config.num_layers
