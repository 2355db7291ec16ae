"""Parameters and FLOPs of a network by part, counted from its shape without building it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.models.architecture import PARTS, find_architecture
from headrace.models.config import ModelConfig

FLOAT_BYTES = 4
"""Bytes of a weight, a gradient, and a number of the optimizer's state."""
CANDIDATES_STEP = 64
"""Candidates of an update are a multiple of this: native steps plan their memory by their number."""
WORTHWHILE_CANDIDATES = 0.75
"""Most candidates, as a share of the vocabulary, that save any time."""


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


def count(config: ModelConfig, sequence_length: float, num_logits: int | None = None) -> Counts:
    """Count a network. FLOPs are those of matrix products, and of causal attention at half of the full square.

    `sequence_length`: tokens that attend to each other; where it changes, their mean counts right. `num_logits`: tokens
    of the vocabulary that each target is compared with; None: all.

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
        "head": 2.0 * (vocab if num_logits is None else num_logits) * width,
    }
    parameters["embedding"] += vocab * width
    parameters["head"] += 0 if config.tie_embeddings else vocab * width
    for part, number in architecture.other_parameters(config).items():
        parameters[part] += number
    return Counts(parameters, flops, block_weights)


def num_candidates(vocab_size: int, num_tokens: int, num_drawn: int) -> int:
    """Return how many tokens an update over so many tokens usually compares; the vocabulary where none are drawn.

    >>> num_candidates(16_000, 2048, num_drawn=512), num_candidates(16_000, 2048, 0), num_candidates(1024, 2048, 512)
    (1280, 16000, 1024)
    """
    if not num_drawn:
        return vocab_size
    wanted = round_candidates(usual_distinct(vocab_size, num_tokens) + num_drawn)
    return wanted if wanted <= WORTHWHILE_CANDIDATES * vocab_size else vocab_size


def round_candidates(number: float) -> int:
    """Round up to a number of candidates that native steps plan for."""
    return math.ceil(number / CANDIDATES_STEP) * CANDIDATES_STEP


def usual_distinct(vocab_size: int, num_tokens: int) -> float:
    """Estimate how many different tokens a batch of text has (docs/design/vocabulary.md says of which texts).

    >>> [round(usual_distinct(16_000, num_tokens)) for num_tokens in (2048, 16_384)]
    [757, 3114]
    """
    return vocab_size * (1 - math.exp(-3.2 * num_tokens**0.72 / vocab_size))
