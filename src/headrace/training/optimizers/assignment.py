"""Which rule updates which parameters, and what that costs: `training.optimizer` names the rule of block matrices.

The embedding, the head and vectors (norms, biases) are always updated by AdamW, vectors without weight decay. The rows
of tokens may learn from each other (related.py).
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from headrace.data.tokens.relations import SharedParts
from headrace.models.architecture import find_architecture
from headrace.models.config import ModelConfig
from headrace.models.counts import FLOAT_BYTES, Counts
from headrace.models.network import Network
from headrace.training.config import TrainingConfig
from headrace.training.optimizers.adamw import AdamW
from headrace.training.optimizers.muon import Muon
from headrace.training.optimizers.related import USUAL_PARTS, RelatedAdamW, related_bytes
from headrace.training.optimizers.rule import Rule

RULES: dict[str, type[Rule]] = {"muon": Muon, "adamw": AdamW}


def assign(network: Network, config: TrainingConfig, shared: SharedParts | None = None) -> list[Rule]:
    """Give every parameter of a network to the rule that updates it.

    `shared`: the parts that tokens share, where they are to learn from each other.
    """
    parameters = dict(network.named_parameters())
    stacked: dict[Tensor, int] = {}
    for matrix in find_architecture(network.config.arch).block_matrices(network.config):
        for layer in range(len(network.blocks)):
            stacked[parameters[f"blocks.{layer}.{matrix.name}"]] = matrix.stacked
    others = [parameter for parameter in parameters.values() if parameter not in stacked]
    rules: list[Rule] = []
    if shared is not None and shared.num_parts:
        tables = network.token_tables
        rules.append(RelatedAdamW(tables, config, config.weight_decay, shared))
        others = [parameter for parameter in others if all(parameter is not table for table in tables)]
    return [
        *rules,
        AdamW([parameter for parameter in others if parameter.dim() == 2], config, config.weight_decay),
        AdamW([parameter for parameter in others if parameter.dim() != 2], config, 0.0),
        RULES[config.optimizer](list(stacked), config, config.weight_decay, stacked),
    ]


def update_flops(config: ModelConfig, optimizer: str, dtype: torch.dtype) -> dict[str, float]:
    """Count the FLOPs of matrix products in one update by the optimizer, by part of the network.

    Matrices are multiplied in other ways in bfloat16 than in float32: `Execution.dtype` tells which it is.

    >>> model = ModelConfig(d_model=64, num_layers=2)
    >>> update_flops(model, "muon", torch.float32)["attention"] / 1e6
    50.331648
    >>> update_flops(model, "adamw", torch.float32)["attention"]
    0.0
    """
    flops: dict[str, float] = defaultdict(float)
    for matrix in find_architecture(config.arch).block_matrices(config):
        each = RULES[optimizer].update_flops(matrix.rows, matrix.columns, dtype)
        flops[matrix.part] += float(config.num_layers * matrix.stacked * each)
    return dict(flops)


def state_bytes(counts: Counts, optimizer: str, related_tokens: float = 0) -> int:
    """Return the size of the optimizer's state of a network, about where tokens learn from related ones."""
    in_blocks = len(RULES[optimizer].averages) * counts.block_weights
    in_parts = USUAL_PARTS * (counts.parameters["embedding"] + counts.parameters["head"]) if related_tokens else 0
    elsewhere = counts.num_parameters - counts.block_weights
    return FLOAT_BYTES * (in_blocks + len(AdamW.averages) * (elsewhere + round(in_parts)))


def update_bytes(config: ModelConfig, training: TrainingConfig, dtype: torch.dtype) -> int:
    """Return the most memory that an update by the optimizer works in, beside gradients and state."""
    rule = RULES[training.optimizer]
    in_blocks = max(
        rule.working_bytes(matrix.rows, matrix.columns, config.num_layers * matrix.stacked, dtype)
        for matrix in find_architecture(config.arch).block_matrices(config)
    )
    in_tables = related_bytes(config.vocab_size, config.d_model) if training.related_tokens else 0
    return max(in_blocks, in_tables)
