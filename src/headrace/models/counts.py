"""Parameters, FLOPs and bytes of a network by part, without building it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.config import ModelConfig


@dataclass(frozen=True)
class Counts:
    """By part: embedding, attention, feed-forward, norms, head."""

    parameters: dict[str, int]
    forward_flops_per_token: dict[str, float]

    @property
    def num_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def training_flops_per_token(self) -> float:
        """Forward and backward: a matrix product has two in its backward pass."""
        return 3 * sum(self.forward_flops_per_token.values())


def count(config: ModelConfig, sequence_length: int) -> Counts:
    """Count a network. FLOPs are those of matrix products, and of causal attention at half of the full square.

    >>> shape = {"d_model": 512, "num_heads": 8, "num_layers": 6, "vocab_size": 16000, "context": 256}
    >>> counts = count(ModelConfig(arch="gpt2", **shape), sequence_length=256)
    >>> counts.num_parameters, round(counts.training_flops_per_token / 1e6)
    (27238400, 167)
    """
    width, layers, vocab, ff = config.d_model, config.num_layers, config.vocab_size, config.feed_forward
    matrices = {"attention": 4 * width * width, "feed-forward": (2 if config.arch == "gpt2" else 3) * width * ff}
    parameters = {
        "embedding": vocab * width,
        "attention": layers * matrices["attention"],
        "feed-forward": layers * matrices["feed-forward"],
        "norms": 0,
        "head": 0 if config.tie_embeddings else vocab * width,
    }
    if config.arch == "gpt2":
        parameters["embedding"] += config.context * width
        parameters["norms"] = (2 * layers + 1) * width * (2 if config.bias else 1)
        if config.bias:
            parameters["attention"] += layers * 4 * width
            parameters["feed-forward"] += layers * (ff + width)
    else:
        parameters["norms"] = (2 * layers + 1) * width + layers * 2 * config.head_dim
    flops = {
        "attention": 2.0 * layers * matrices["attention"] + 2.0 * layers * sequence_length * width,
        "feed-forward": 2.0 * layers * matrices["feed-forward"],
        "head": 2.0 * vocab * width,
    }
    return Counts(parameters, flops)
