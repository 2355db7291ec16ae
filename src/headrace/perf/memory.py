"""Memory of a run by part."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.config import ModelConfig
from headrace.models.counts import Counts

FLOAT_BYTES, BFLOAT16_BYTES = 4, 2
# Bytes that a block keeps for each token: so many for each of its width, so many for each of its feed-forward width.
# Counted on networks of several shapes.
KEPT_BYTES = {
    ("gpt2", "float32"): (32, 8),
    ("gpt2", "bfloat16"): (20, 4),
    ("qwen3", "float32"): (60, 16),
    ("qwen3", "bfloat16"): (50, 8),
}
# PyTorch asks glibc for aligned memory, and to glibc the place of a freed tensor is too small for the next one of its
# size (docs/design/rehearsal.md). So much of what comes and goes is lost to it, where it was not measured.
FRAGMENTATION = 0.5


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of each part at the moment when most is held."""

    weights: int
    weight_copies: int
    """Those of a lower precision, which autocast makes in every forward pass."""
    gradients: int
    optimizer: int
    activations: int
    head_buffer: int
    fragmentation: int
    """Held by the allocator, and of no use."""
    loader: int
    runtime: int

    @property
    def total(self) -> int:
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, int]:
        """By the names that people see."""
        return {
            "weights": self.weights,
            "weight copies": self.weight_copies,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
            "head buffer": self.head_buffer,
            "fragmentation": self.fragmentation,
            "loader": self.loader,
            "runtime": self.runtime,
        }


def matrix_parameters(config: ModelConfig) -> int:
    """Weights of the matrices in the blocks, which Muon owns."""
    width = config.d_model
    per_layer = 4 * width * width + (2 if config.arch == "gpt2" else 3) * width * config.feed_forward
    return config.num_layers * per_layer


def optimizer_bytes(config: ModelConfig, counts: Counts, optimizer: str) -> int:
    """AdamW keeps two averages of each parameter, Muon one."""
    muon = matrix_parameters(config) if optimizer == "muon" else 0
    return FLOAT_BYTES * (2 * (counts.num_parameters - muon) + muon)


def weight_copy_bytes(config: ModelConfig, precision: str) -> int:
    """Return the size of autocast's copies of the matrices in the blocks, kept until they are used backwards.

    With gradient checkpointing they are kept as well, to the end of the forward pass: that is when most is held.
    """
    return BFLOAT16_BYTES * matrix_parameters(config) if precision == "bfloat16" else 0


def memory_parts(
    config: ModelConfig,
    counts: Counts,
    optimizer: str,
    micro_batch_tokens: int,
    activation_bytes_per_token: float,
    head_chunk_bytes: int,
    loader_bytes: int,
    runtime_bytes: int,
    num_shards: int = 1,
    precision: str = "float32",
) -> MemoryParts:
    """What training holds at its peak: the end of a forward pass, with the gradients of earlier micro-batches.

    What the optimizer works in takes the place of activations, which are gone by then. `runtime_bytes` is what the
    process takes with nothing built: measured, not assumed.
    `num_shards`: processes that share the state of the model; each gathers the head while it computes.
    """
    weights = FLOAT_BYTES * counts.num_parameters // num_shards
    head_weight = FLOAT_BYTES * config.vocab_size * config.d_model
    logits = min(head_chunk_bytes, FLOAT_BYTES * micro_batch_tokens * config.vocab_size)
    copies = weight_copy_bytes(config, precision)
    activations = int(micro_batch_tokens * activation_bytes_per_token)
    head_buffer = 2 * logits + head_weight + FLOAT_BYTES * micro_batch_tokens * config.d_model
    return MemoryParts(
        weights=weights + (head_weight if num_shards > 1 else 0),
        weight_copies=copies,
        gradients=weights,
        optimizer=optimizer_bytes(config, counts, optimizer) // num_shards,
        activations=activations,
        head_buffer=head_buffer,
        fragmentation=int(FRAGMENTATION * (weights + copies + activations + head_buffer)),
        loader=loader_bytes,
        runtime=runtime_bytes,
    )


def estimated_activation_bytes_per_token(config: ModelConfig, precision: str = "float32") -> float:
    """Estimate what the blocks keep for the backward pass, where there is no network to count it on."""
    per_width, per_feed_forward = KEPT_BYTES[config.arch, precision]
    return config.num_layers * (per_width * config.d_model + per_feed_forward * config.feed_forward)


def checkpointed_bytes_per_token(config: ModelConfig, activation_bytes_per_token: float) -> float:
    """With gradient checkpointing: the input of each block, and what one block keeps."""
    return FLOAT_BYTES * config.num_layers * config.d_model + activation_bytes_per_token / config.num_layers


def room_for(part_bytes: float, free_bytes: float) -> float:
    """By what factor a part could grow until nothing is free.

    >>> room_for(100, 300)
    4.0
    """
    return 1 + free_bytes / max(part_bytes, 1.0)
