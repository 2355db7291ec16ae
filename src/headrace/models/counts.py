"""Parameters and FLOPs of a network by part, counted from its shape without building it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.architecture import PARTS, find_architecture
from headrace.models.config import ModelConfig

FLOAT_BYTES = 4
"""Bytes of a weight, a gradient, and a number of the optimizer's state."""


@dataclass(frozen=True)
class Counts:
    """The size of a network and the cost of a token, by part: embedding, attention, feed-forward, norms, head."""

    parameters: dict[str, int]
    forward_flops_per_token: dict[str, float]
    block_weights: int
    """Weights in the matrices of all blocks, which is most of the parameters; the embedding and the head are not."""

    @property
    def num_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def training_flops_per_token(self) -> float:
        """FLOPs of forward and backward: every matrix product has two more in its backward pass."""
        return 3 * sum(self.forward_flops_per_token.values())


def count(config: ModelConfig, sequence_length: float) -> Counts:
    """Count a network. FLOPs are those of matrix products, and of causal attention at half of the full square.

    `sequence_length`: tokens that attend to each other; where it changes, their mean counts right.

    >>> shape = {"d_model": 512, "num_heads": 8, "num_layers": 6, "vocab_size": 16000, "context": 256}
    >>> counts = count(ModelConfig(arch="gpt2", **shape), sequence_length=256)
    >>> counts.num_parameters, round(counts.training_flops_per_token / 1e6)
    (27238400, 167)
    """
    architecture = find_architecture(config.arch)
    width, layers, vocab = config.d_model, config.num_layers, config.vocab_size
    parameters: dict[str, int] = dict.fromkeys(PARTS, 0)
    for matrix in architecture.block_matrices(config):
        parameters[matrix.part] += layers * matrix.num_weights
    block_weights = sum(parameters.values())
    flops = {
        "attention": 2.0 * parameters["attention"] + 2.0 * layers * sequence_length * config.attention_width,
        "feed-forward": 2.0 * parameters["feed-forward"],
        "head": 2.0 * vocab * width,
    }
    parameters["embedding"] += vocab * width
    parameters["head"] += 0 if config.tie_embeddings else vocab * width
    for part, number in architecture.other_parameters(config).items():
        parameters[part] += number
    return Counts(parameters, flops, block_weights)
